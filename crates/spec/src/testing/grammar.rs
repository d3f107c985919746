//! A grammar for tests.

use std::fmt::Debug;

use crate::{Grammar, GrammarError, Token};

/// Allows at each place of the answer the tokens given for it, and after the last one, the token that ends it.
#[derive(Clone, Debug)]
pub struct FixedText {
    places: Vec<Vec<Token>>,
    end: Token,
    said: Vec<Token>,
    mask: Vec<u32>,
}

impl FixedText {
    /// An answer with one of these tokens at each place.
    pub fn new(places: &[&[Token]], end: Token) -> Self {
        let places: Vec<Vec<Token>> = places.iter().map(|tokens| tokens.to_vec()).collect();
        let most = places.iter().flatten().copied().chain([end]).max().unwrap_or(0);
        Self {
            mask: vec![0; most as usize / 32 + 1],
            places,
            end,
            said: Vec::new(),
        }
    }

    fn next(&self) -> &[Token] {
        match self.said.len().cmp(&self.places.len()) {
            std::cmp::Ordering::Less => &self.places[self.said.len()],
            std::cmp::Ordering::Equal => std::slice::from_ref(&self.end),
            std::cmp::Ordering::Greater => &[],
        }
    }
}

impl Grammar for FixedText {
    fn allowed(&mut self) -> Result<&[u32], GrammarError> {
        let next = self.next().to_vec();
        if next.is_empty() {
            return Err(GrammarError("it has ended".into()));
        }
        self.mask.fill(0);
        for token in next {
            self.mask[token as usize / 32] |= 1 << (token % 32);
        }
        Ok(&self.mask)
    }

    fn accept(&mut self, token: Token) -> bool {
        let legal = self.next().contains(&token);
        if legal {
            self.said.push(token);
        }
        legal
    }

    fn rollback(&mut self, n: usize) {
        self.said.truncate(self.said.len() - n);
    }

    fn forced(&mut self) -> Vec<Token> {
        let rest = self.places.get(self.said.len()..).unwrap_or_default();
        let single = rest.iter().map_while(|tokens| match tokens[..] {
            [only] => Some(only),
            _ => None,
        });
        single.collect()
    }

    fn boxed(&self) -> Box<dyn Grammar> {
        Box::new(self.clone())
    }
}
