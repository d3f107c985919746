//! Drafting from a prediction: a text that the answer will mostly repeat, such as the file that it is to edit.
//!
//! The answer is followed through the prediction token by token. Where it differs, the place is looked for where the
//! answer's last tokens stand in the prediction: after a deletion, an insertion or a replacement the rest goes on there. Until
//! it is found, the token that comes next may be the one that was expected, or one after.

use std::collections::HashMap;

use super::grow::{Guesser, grow};
use crate::{DraftError, Drafter, Proposal, Request, SequenceId, Source, Token};

/// Tokens of the answer that are compared to find the place again.
const CONTEXT: usize = 16;
/// So many places before and behind the one expected are looked at.
const NEAR: usize = 64;
/// Fewer in common than this may be chance.
const LEAST_CONTEXT: usize = 2;
/// How likely the next token is, after so many in a row that were right; the controller measures what is true.
const CONFIDENCE: [f32; 6] = [0.35, 0.6, 0.75, 0.85, 0.9, 0.95];

/// Drafts from what requests say that their answers will be.
#[derive(Debug, Default)]
pub struct PredictionDrafter {
    end_of_generation: Vec<Token>,
    sequences: HashMap<SequenceId, Sequence>,
}

#[derive(Debug)]
struct Sequence {
    prediction: Prediction,
    place: Place,
    /// Tokens of the prompt.
    prompt: usize,
    /// Tokens of the sequence that were followed.
    known: usize,
}

#[derive(Debug)]
struct Prediction {
    tokens: Vec<Token>,
    /// Where each token stands.
    places: HashMap<Token, Vec<usize>>,
}

/// What comes next in the prediction, and after how many that were right.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    next: usize,
    right: usize,
}

impl Prediction {
    fn new(tokens: &[Token]) -> Self {
        let mut places: HashMap<Token, Vec<usize>> = HashMap::new();
        for (at, &token) in tokens.iter().enumerate() {
            places.entry(token).or_default().push(at);
        }
        Self {
            tokens: tokens.to_vec(),
            places,
        }
    }

    /// Where the answer goes on, of which `answer` are the tokens so far.
    fn find(&self, answer: &[Token], place: Place) -> Option<Place> {
        let &last = answer.last()?;
        let common = |at: usize| {
            let pairs = answer.iter().rev().zip(self.tokens[..=at].iter().rev());
            pairs.take(CONTEXT).take_while(|(a, b)| a == b).count()
        };
        let places = self.places.get(&last)?;
        let middle = places.partition_point(|&at| at < place.next);
        let near = &places[middle.saturating_sub(NEAR)..places.len().min(middle + NEAR)];
        let found = near.iter().map(|&at| (common(at), at));
        // Of equally good places the nearest, one behind rather than one before.
        let (common, at) = found.max_by_key(|&(common, at)| {
            let distance = at.abs_diff(place.next);
            (common, at >= place.next, std::cmp::Reverse(distance))
        })?;
        (common >= LEAST_CONTEXT).then_some(Place {
            next: at + 1,
            right: common,
        })
    }
}

impl Guesser for Prediction {
    type Place = Place;

    fn advance(&self, place: &Place, token: Token) -> Place {
        let expected = |ahead: usize| self.tokens.get(place.next + ahead) == Some(&token);
        let (ahead, right) = match () {
            () if expected(0) => (1, place.right + 1),
            () if expected(1) => (2, 1),
            // As if it stood in the place of the one expected.
            () => (1, 0),
        };
        Place {
            next: place.next + ahead,
            right,
        }
    }

    fn guess(&self, place: &Place, guesses: &mut Vec<Proposal>) {
        let mut confidence = CONFIDENCE[place.right.min(CONFIDENCE.len() - 1)];
        for &token in self.tokens.iter().skip(place.next).take(2) {
            if guesses.iter().all(|guess| guess.token != token) {
                guesses.push(Proposal { token, confidence });
            }
            confidence = (1.0 - confidence) / 2.0;
            if place.right > 2 {
                break;
            }
        }
    }
}

impl Sequence {
    fn follow(&mut self, tokens: &[Token]) {
        for at in self.known..tokens.len() {
            let expected = self.prediction.tokens.get(self.place.next) == Some(&tokens[at]);
            let after = self.prediction.advance(&self.place, tokens[at]);
            self.place = match expected {
                true => after,
                false => self
                    .prediction
                    .find(&tokens[self.prompt..=at], self.place)
                    .unwrap_or(after),
            };
        }
        self.known = tokens.len();
    }
}

impl PredictionDrafter {
    /// It proposes none of the tokens in `end_of_generation`.
    pub fn new(end_of_generation: Vec<Token>) -> Self {
        Self {
            end_of_generation,
            sequences: HashMap::new(),
        }
    }
}

impl Drafter for PredictionDrafter {
    fn name(&self) -> &str {
        Source::Prediction.name()
    }

    fn begin(&mut self, sequence: SequenceId, prompt: &[Token]) -> Result<(), DraftError> {
        let new = Sequence {
            prediction: Prediction::new(&[]),
            // An answer that was predicted begins as the prediction does.
            place: Place { next: 0, right: 3 },
            prompt: prompt.len(),
            known: prompt.len(),
        };
        self.sequences.insert(sequence, new);
        Ok(())
    }

    fn predicted(&mut self, sequence: SequenceId, prediction: &[Token]) {
        if let Some(sequence) = self.sequences.get_mut(&sequence) {
            sequence.prediction = Prediction::new(prediction);
        }
    }

    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        for request in requests {
            let known = self.sequences.get_mut(&request.sequence);
            let Some(sequence) = known.filter(|sequence| !sequence.prediction.tokens.is_empty()) else {
                continue;
            };
            sequence.follow(request.tokens);
            grow(
                &sequence.prediction,
                Source::Prediction,
                &self.end_of_generation,
                sequence.place,
                request,
            );
        }
        Ok(())
    }

    fn end(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Follows an answer through a prediction and says what would come next.
    fn next(prediction: &[Token], answer: &[Token]) -> Option<Token> {
        let mut sequence = Sequence {
            prediction: Prediction::new(prediction),
            place: Place { next: 0, right: 3 },
            prompt: 1,
            known: 1,
        };
        sequence.follow(&[&[0], answer].concat());
        let mut guesses = Vec::new();
        sequence.prediction.guess(&sequence.place, &mut guesses);
        guesses.first().map(|guess| guess.token)
    }

    #[test]
    fn it_follows_an_answer_through_edits() {
        let text: Vec<Token> = (10..40).collect();
        let check =
            |answer: &[Token], want: Option<Token>| assert_eq!(next(&text, answer), want, "{answer:?}");
        check(&[], Some(10));
        check(&[10, 11, 12], Some(13));
        // One replaced by another, by two, by none.
        check(&[10, 11, 99], Some(13));
        check(&[10, 11, 99, 98, 13, 14], Some(15));
        check(&[10, 11, 13], Some(14));
        // Much left out, and much put in.
        check(&[10, 11, 30, 31], Some(32));
        check(&[10, 11, 12, 1, 2, 3, 4, 5, 6, 7, 8, 13, 14], Some(15));
        // Another beginning, and the end.
        check(&[99, 98, 97, 20, 21], Some(22));
        check(&(10..40).collect::<Vec<_>>(), None);
    }

    #[test]
    fn of_places_alike_it_takes_the_one_ahead() {
        // Twice the same line; the first has been passed.
        let text = [1, 2, 3, 4, 50, 1, 2, 3, 4, 60];
        assert_eq!(next(&text, &[1, 2, 3, 4, 50, 9, 1, 2]), Some(3));
        assert_eq!(next(&text, &[1, 2, 3, 4, 50, 9, 1, 2, 3, 4]), Some(60));
    }
}
