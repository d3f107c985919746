//! A grammar under way.

use foretoken_spec::{Grammar, GrammarError, Token};
use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

/// llguidance's matcher, with the token that ends the generation kept apart from the text.
pub(crate) struct Matched {
    matcher: Matcher,
    ends: Vec<Token>,
    /// A token has ended the generation.
    ended: bool,
    allowed: SimpleVob,
}

impl Matched {
    pub fn new(matcher: Matcher, ends: Vec<Token>) -> Self {
        Self {
            matcher,
            ends,
            ended: false,
            allowed: SimpleVob::default(),
        }
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
        let allowed = self.matcher.compute_mask_or_eos();
        self.allowed = allowed.map_err(|error| GrammarError(error.to_string()))?;
        Ok(self.allowed.as_slice())
    }

    fn accept(&mut self, token: Token) -> bool {
        if self.ended || self.matcher.is_error() {
            return false;
        }
        if self.ends.contains(&token) {
            self.ended = self.matcher.is_stopped() || self.matcher.is_accepting().unwrap_or(false);
            return self.ended;
        }
        !self.matcher.is_stopped()
            && self
                .matcher
                .validate_tokens(&[token])
                .is_ok_and(|legal| legal == 1)
            && self.matcher.consume_token(token).is_ok()
    }

    fn rollback(&mut self, n: usize) {
        if n == 0 {
            return;
        }
        let ended = usize::from(std::mem::take(&mut self.ended));
        if n > ended {
            // A matcher that cannot is in error from here on, and says so when it is asked.
            let _ = self.matcher.rollback(n - ended);
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
            ends: self.ends.clone(),
            ended: self.ended,
            allowed: self.allowed.clone(),
        })
    }
}
