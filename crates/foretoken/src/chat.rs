//! `foretoken chat`: a conversation with a model.
//!
//! Answers go to standard output as they become certain, everything else to standard error. In a terminal there are line editing
//! and a line that tells the speed. Otherwise each line of standard input is a message or a command, answers alone come out, and
//! the first that fails ends it: what a script says next was meant to follow what it said before.
//!
//! A conversation only ever grows by a message together with its answer. The engine keeps what the last answer left in the cache,
//! so that of a prompt only what is new is computed.

mod command;
mod conversation;
mod input;
mod screen;
mod totals;

use std::io::Write;
use std::ops::ControlFlow;
use std::time::Instant;

use anyhow::bail;
use foretoken::engine::RequestError;
use foretoken::model::PromptError;
use foretoken::{
    FinishReason, Generation, GenerationRequest, Sampler, Session, SessionError, SessionOptions,
};

use crate::cli::ChatArgs;
use crate::interrupt::Interrupt;
use crate::output::{Output, escape};
use crate::report::Report;
use crate::run::{load, seed};
use command::{Entry, HELP};
use conversation::Conversation;
use input::Input;
use screen::Screen;
use totals::Totals;

/// Ended sequences that the cache remembers: that of the last answer, with which the next prompt begins.
const PREFIXES: usize = 1;

/// Runs the command.
pub fn chat(args: &ChatArgs) -> anyhow::Result<()> {
    let interrupt = Interrupt::install()?;
    let seed = seed(args.sampling.seed)?;
    let mut input = Input::new(!args.no_history)?;
    let mut chat = Chat::start(args, interrupt, seed)?;
    if input.is_terminal() {
        say("/help lists the commands; Ctrl-D leaves\n");
    }
    while let Some(entered) = input.next(chat.answered)? {
        chat.answered = None;
        match Entry::parse(&entered).and_then(|entry| chat.enter(entry)) {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => break,
            Err(error) => match input.place() {
                None => say(&format!("error: {}\n", crate::one_line(&error))),
                Some(place) => return Err(error.context(place)),
            },
        }
        if input.is_terminal() {
            say("\n");
        }
    }
    Ok(())
}

/// Nobody to read it is no fault.
fn say(text: &str) {
    let _ = write!(std::io::stderr(), "{}", escape(text));
}

struct Chat<'a> {
    args: &'a ChatArgs,
    session: Session,
    interrupt: Interrupt,
    output: Output,
    screen: Screen,
    conversation: Conversation,
    seed: u64,
    /// How often the last message was answered anew.
    attempt: u64,
    /// The last answer.
    last: Option<Generation>,
    totals: Totals,
    /// When it ended, if by itself.
    answered: Option<Instant>,
}

impl<'a> Chat<'a> {
    fn start(args: &'a ChatArgs, interrupt: Interrupt, seed: u64) -> anyhow::Result<Self> {
        let session = load(&SessionOptions {
            drafting: args.drafting.drafting(),
            draft_model: args.draft.file()?,
            draft_vocab: args.draft.draft_vocab,
            corpus: args.drafting.draft_corpus.clone(),
            policy: args.drafting.policy(),
            loss_budget: f64::from(args.drafting.loss_budget),
            threads: Some(args.threads.count()),
            context: args.context.map(|n| n as usize),
            prefixes: PREFIXES,
            ..SessionOptions::new(args.model.file()?)
        })?;
        if !session.prompts().has_template() {
            bail!(
                "{}: the model has no chat template, which a conversation needs; `foretoken run` goes on with a text",
                args.model
            );
        }
        let conversation = Conversation::new(args.system.clone());
        // A template may know no system messages: better now than at the first message.
        session.chat(&conversation.ask("?").messages())?;
        Ok(Self {
            args,
            output: Output::new(args.show_draft, &session),
            session,
            interrupt,
            screen: Screen::new(),
            conversation,
            seed,
            attempt: 0,
            last: None,
            totals: Totals::default(),
            answered: None,
        })
    }

    /// Does what was entered; breaks off if that is to leave.
    fn enter(&mut self, entry: Entry) -> anyhow::Result<ControlFlow<()>> {
        match entry {
            Entry::Message(text) => self.answer(self.conversation.ask(text), 0)?,
            Entry::Regenerate => match self.conversation.without_answer() {
                Some(asked) => self.answer(asked, self.attempt + 1)?,
                None => bail!("/regenerate: there is no message to answer anew"),
            },
            Entry::Help => say(HELP),
            Entry::System(None) => say(&self.system()),
            Entry::System(Some(text)) => self.set_system(text)?,
            Entry::Clear => {
                self.conversation = Conversation::new(self.conversation.system.take());
                say("a new conversation begins\n");
            }
            Entry::Save { file, replace } => {
                if self.conversation.len() == 0 {
                    bail!("/save: nothing is said yet");
                }
                self.conversation.save(&file, replace)?;
                say(&format!(
                    "{} messages are in {}\n",
                    self.conversation.len(),
                    file.display()
                ));
            }
            Entry::Load(file) => {
                if self.conversation.len() > 0 {
                    bail!(
                        "/load: there is a conversation, which it would replace: /save it or not, then /clear"
                    );
                }
                let loaded = Conversation::load(&file)?;
                // Its template may refuse what it says.
                self.session.chat(&loaded.messages()).map_err(full)?;
                self.conversation = loaded;
                self.attempt = 0;
                say(&format!(
                    "{} messages; {}",
                    self.conversation.len(),
                    self.system()
                ));
                if self.conversation.awaits_answer() {
                    say("/regenerate answers the last one\n");
                }
            }
            Entry::Stats => self.stats()?,
            Entry::Quit => return Ok(ControlFlow::Break(())),
        }
        Ok(ControlFlow::Continue(()))
    }

    fn system(&self) -> String {
        match &self.conversation.system {
            Some(text) => format!("the system message is: {text}\n"),
            None => "there is no system message\n".into(),
        }
    }

    fn set_system(&mut self, text: String) -> anyhow::Result<()> {
        let mut changed = self.conversation.clone();
        changed.system = (text != "\"\"").then_some(text);
        self.session.chat(&changed.ask("?").messages()).map_err(full)?;
        self.conversation = changed;
        say(&self.system());
        if self.conversation.len() > 0 {
            say("it holds from now on; the conversation stays, and is read anew\n");
        }
        Ok(())
    }

    fn stats(&self) -> anyhow::Result<()> {
        let Some(generation) = &self.last else {
            bail!("/stats: nothing was answered yet");
        };
        let report = Report {
            model: &self.args.model,
            draft: &self.args.draft,
            drafting: &self.args.drafting,
            sampling: &self.args.sampling,
            seed: self.seed,
            session: &self.session,
            generation,
        };
        say(&format!(
            "the last answer\n{}\nall answers\n\n{}",
            report.text(),
            self.totals
        ));
        Ok(())
    }

    /// Answers the last message. The conversation stays as it is if that fails, or nothing is said.
    fn answer(&mut self, asked: Conversation, attempt: u64) -> anyhow::Result<()> {
        let prompt = self.session.chat(&asked.messages()).map_err(full)?;
        let cancel = self.interrupt.start(self.session.draft_cancel());
        self.screen.begin(prompt.len());
        let request = GenerationRequest {
            prompt,
            sampler: self.args.sampling.params(),
            key: Sampler::key(self.seed, attempt),
            max_tokens: usize::try_from(self.args.predict).ok(),
            stops: self.args.stop.clone(),
            cancel: cancel.clone(),
            ..GenerationRequest::default()
        };
        let mut broken = None;
        let outcome = self.session.generate(request, |progress| {
            if let Err(error) = self.screen.add(&self.output.render(progress), progress) {
                broken.get_or_insert(error);
                cancel.cancel();
            }
        });
        self.interrupt.end();
        if let Some(error) = broken {
            return Err(error.into());
        }
        let outcome = outcome.map_err(full);
        self.screen.end(outcome.is_ok())?;
        let generation = outcome?;
        let finish = generation.finish;
        self.totals.add(&generation.stats);
        if generation.text.is_empty() && finish == FinishReason::Cancelled {
            say("note: stopped before there was an answer; the message is not part of the conversation\n");
        } else {
            self.conversation = asked.answer(&*generation.text);
            self.attempt = attempt;
            say(&self.cut_off(&generation));
        }
        if finish != FinishReason::Cancelled {
            self.answered = Some(Instant::now());
        }
        self.last = Some(generation);
        Ok(())
    }

    /// What to say of an answer that the model did not end itself.
    fn cut_off(&self, generation: &Generation) -> String {
        let stats = &generation.stats;
        match generation.finish {
            FinishReason::Stop if generation.text.is_empty() => "note: the answer is empty\n".into(),
            FinishReason::Stop => String::new(),
            FinishReason::Cancelled => "note: stopped; what was said stays in the conversation\n".into(),
            FinishReason::Length => format!("note: cut off after {} tokens (--predict)\n", stats.generated),
            FinishReason::Context => format!(
                "note: cut off, since the context of {} tokens is full. {FULL}\n",
                stats.prompt_tokens + stats.generated
            ),
        }
    }
}

/// What can be done about a full context.
const FULL: &str = "/clear begins a new conversation, /save FILE keeps this one before; -c N gives more room";

/// Says what to do, if it is the context's length that was exceeded.
fn full(error: SessionError) -> anyhow::Error {
    match error {
        SessionError::Request(RequestError::PromptTooLong { .. })
        | SessionError::Prompt {
            source: PromptError::TooLong { .. },
            ..
        } => anyhow::anyhow!("nothing was sent: {error}. {FULL}"),
        error => error.into(),
    }
}
