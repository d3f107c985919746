//! A grammar under way.
//!
//! llguidance's matcher remembers what paths cost that were taken back, and once it has failed it stays so. Neither may decide about
//! an answer, since drafts are such paths: what fails is tried again from the beginning, along the accepted tokens alone.

use foretoken_spec::{Grammar, GrammarError, Token};
use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

/// llguidance says why in a text.
type Outcome<T> = Result<T, String>;

/// llguidance's matcher, with the token that ends the generation kept apart from the text.
pub(crate) struct Matched {
    matcher: Matcher,
    /// As it was before the first token.
    fresh: Matcher,
    /// Tokens of the text that were accepted.
    said: Vec<Token>,
    ends: Vec<Token>,
    /// A token has ended the generation.
    ended: bool,
    allowed: SimpleVob,
}

impl Matched {
    pub fn new(matcher: Matcher, ends: Vec<Token>) -> Self {
        Self {
            fresh: matcher.deep_clone(),
            matcher,
            said: Vec::new(),
            ends,
            ended: false,
            allowed: SimpleVob::default(),
        }
    }

    /// Asks the matcher, and where it fails, one that has seen nothing but the accepted tokens.
    fn ask<T>(&mut self, ask: impl Fn(&mut Matcher) -> Outcome<T>) -> Outcome<T> {
        if let Ok(answer) = ask(&mut self.matcher) {
            return Ok(answer);
        }
        self.matcher = self.fresh.deep_clone();
        let replayed = self.matcher.consume_tokens(&self.said);
        replayed.map_err(|error| error.to_string())?;
        ask(&mut self.matcher)
    }
}

impl std::fmt::Debug for Matched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matched")
            .field("ended", &self.ended)
            .field("error", &self.matcher.get_error())
            .finish_non_exhaustive()
    }
}

impl Grammar for Matched {
    fn allowed(&mut self) -> Result<&[u32], GrammarError> {
        if self.ended {
            return Err(GrammarError("the generation has ended".into()));
        }
        let allowed = self.ask(|matcher| matcher.compute_mask_or_eos().map_err(|e| e.to_string()));
        self.allowed = allowed.map_err(GrammarError)?;
        Ok(self.allowed.as_slice())
    }

    fn accept(&mut self, token: Token) -> bool {
        if self.ended {
            return false;
        }
        if self.ends.contains(&token) {
            let complete = |matcher: &mut Matcher| match matcher.get_error() {
                None if matcher.is_stopped() => Ok(true),
                None => matcher.is_accepting().map_err(|error| error.to_string()),
                Some(error) => Err(error),
            };
            self.ended = self.ask(complete).unwrap_or(false);
            return self.ended;
        }
        let taken = self.ask(|matcher| {
            if !matcher.is_error() && matcher.is_stopped() {
                return Ok(false);
            }
            let taken = matcher.try_consume_tokens(&[token]);
            taken.map(|taken| taken == 1).map_err(|error| error.to_string())
        });
        let taken = taken.unwrap_or(false);
        if taken {
            self.said.push(token);
        }
        taken
    }

    fn rollback(&mut self, n: usize) {
        if n == 0 {
            return;
        }
        let ended = usize::from(std::mem::take(&mut self.ended));
        let back = n - ended;
        if back > 0 {
            self.said.truncate(self.said.len() - back);
            // A matcher that cannot is in error from here on, and is replaced when it is asked.
            let _ = self.matcher.rollback(back);
            // What it worked out on the other path may look as if it were of this one.
            self.matcher.invalidate_bias_cache();
        }
    }

    fn forced(&mut self) -> Vec<Token> {
        if self.ended || self.matcher.is_stopped() {
            return Vec::new();
        }
        self.matcher.compute_ff_tokens()
    }

    fn boxed(&self) -> Box<dyn Grammar> {
        Box::new(Self {
            matcher: self.matcher.deep_clone(),
            fresh: self.fresh.deep_clone(),
            said: self.said.clone(),
            ends: self.ends.clone(),
            ended: self.ended,
            allowed: self.allowed.clone(),
        })
    }
}
