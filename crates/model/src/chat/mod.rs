//! Chat templates from GGUF metadata.
//!
//! A template is a Jinja program written for Python; `environment` makes minijinja behave alike. What it
//! writes becomes tokens such that control tokens come from the template alone; `literal` says how text
//! is kept apart from it.
//!
//! Not here: tools, documents, and messages with parts other than text.

mod environment;
mod literal;

use crate::{LoadError, Tokenizer};
use foretoken_gguf::Gguf;
use foretoken_spec::Token;
use literal::Marks;
use minijinja::{Environment, Value, context};
use std::ops::Range;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Message {
    /// `system`, `user`, `assistant`.
    pub role: String,
    /// Its text.
    pub content: String,
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
}

/// Longest source, in bytes; real templates have less. It bounds how deep minijinja recurses in expressions.
const SOURCE_MAX: usize = 1 << 16;
/// What a template may do, in minijinja's unit: one instruction, or 64 bytes written or copied.
const FUEL: u64 = 300_000;
/// What it may do beyond for each message, and for each byte of text.
const FUEL_PER_MESSAGE: u64 = 1_000;
const FUEL_PER_BYTE: u64 = 1;

impl ChatTemplate {
    /// The template of the file; `None` if it has none.
    ///
    /// # Errors
    /// A template that is no Jinja, or absurdly long.
    pub fn from_gguf(gguf: &Gguf) -> Result<Option<Self>, LoadError> {
        gguf.string("tokenizer.chat_template")?
            .map(|source| Self::new(source).map_err(LoadError::ChatTemplate))
            .transpose()
    }

    fn new(source: &str) -> Result<Self, String> {
        if source.len() > SOURCE_MAX {
            return Err(format!(
                "it has {} bytes; at most {SOURCE_MAX} are supported",
                source.len()
            ));
        }
        let environment =
            environment::apart(|| environment::compile(source).map_err(|error| explain(&error)))?;
        Ok(Self {
            environment,
            source: source.to_owned(),
        })
    }

    /// The tokens of a prompt that asks the model to answer `messages`, the token that prompts start with
    /// included.
    ///
    /// Special tokens come from the template alone: text inside a message, its role included, is never parsed
    /// as control tokens, also not where the template cuts or joins it.
    /// User-defined tokens that the template writes itself count as control tokens, since some files list
    /// `<|im_start|>` as one; so do all in bars.
    ///
    /// # Errors
    /// What the template itself refuses (a role that it does not know, roles in another order), and a
    /// template that runs too long or writes too much.
    pub fn encode(&self, tokenizer: &Tokenizer, messages: &[Message]) -> Result<Vec<Token>, String> {
        let Rendered {
            text,
            literal,
            markup,
        } = self.render(tokenizer, messages)?;
        let mut tokens = tokenizer.encode_literal(&text, &literal, &markup);
        if let Some(bos) = tokenizer.bos()
            && tokens.first() != Some(&bos)
        {
            tokens.insert(0, bos);
        }
        Ok(tokens)
    }

    /// The prompt, apart by whose text it is.
    fn render(&self, tokenizer: &Tokenizer, messages: &[Message]) -> Result<Rendered, String> {
        let (bos, eos) = (tokenizer.bos_piece(), tokenizer.eos_piece());
        let texts = messages
            .iter()
            .flat_map(|message| [&*message.role, &*message.content]);
        let marks = Marks::unused_in(texts.chain([&*self.source, bos, eos]))
            .ok_or("the messages use every private character of Unicode")?;
        let run = |mark: &dyn Fn(&str) -> String| {
            let mut fuel = FUEL + FUEL_PER_MESSAGE * messages.len() as u64;
            let messages = messages.iter().map(|Message { role, content }| {
                let role = if literal::is_role(role) {
                    role.clone()
                } else {
                    mark(role)
                };
                let content = mark(content);
                fuel += FUEL_PER_BYTE * (role.len() + content.len()) as u64;
                Value::from_pairs([("role", role), ("content", content)])
            });
            let messages: Value = messages.collect();
            let context = context! {
                messages,
                add_generation_prompt => true,
                bos_token => bos,
                eos_token => eos,
                tools => (),
                documents => (),
            };
            let text = environment::apart(|| {
                environment::render(&self.environment, context, fuel).map_err(|error| explain(&error))
            })?;
            Ok::<_, String>(marks.remove(&text))
        };
        let control = |(text, literal): &(String, Vec<Range<usize>>), markup: &[Token]| -> Vec<Token> {
            let tokens = tokenizer.control_tokens(text, literal, markup);
            tokens.into_iter().map(|(token, _)| token).collect()
        };
        // Marking everything shows the template's own control tokens.
        let whole = |text: &str| literal::inside(text, tokenizer.control_has_space());
        let opaque = run(&|text| marks.mark(text, &[whole(text)]))?;
        let markup = tokenizer.markup(&[(&self.source, &[]), (&opaque.0, &opaque.1)]);
        let own = control(&opaque, &markup);
        // Marking only what is the text of a control token lets the template read all other text as it is: at
        // first markup too, which some templates look for to take it out. Where control tokens come out that
        // are not its own, of text left, joined or changed, more is marked.
        for marked in [&markup[..0], &markup] {
            let mark = |text: &str| {
                let found = tokenizer.control_tokens(text, &[], marked);
                let ranges: Vec<_> = found.into_iter().map(|(_, range)| range).collect();
                marks.mark(text, &ranges)
            };
            let rendered = run(&mark)?;
            if control(&rendered, &markup) == own {
                return Ok(Rendered::new(rendered, markup.clone()));
            }
        }
        Ok(Rendered::new(opaque, markup))
    }
}

/// What a template wrote.
struct Rendered {
    text: String,
    /// Ranges of it, in bytes, that no control token may overlap.
    literal: Vec<Range<usize>>,
    /// User-defined tokens that count as control tokens.
    markup: Vec<Token>,
}

impl Rendered {
    fn new((text, literal): (String, Vec<Range<usize>>), markup: Vec<Token>) -> Self {
        Self {
            text,
            literal,
            markup,
        }
    }
}

/// The error and what caused it, in one line.
fn explain(error: &minijinja::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests;
