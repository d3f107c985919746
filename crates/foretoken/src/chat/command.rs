//! What was entered: a message, or a command.

use std::path::PathBuf;

use anyhow::bail;

/// What `/help` says.
pub const HELP: &str = "\
/system [TEXT]   show or set the system message, from now on; \"\" takes it away
/clear, /new     begin a new conversation with the same system message
/regenerate      answer the last message anew, with other noise (at temperature 0 it is the same answer)
/save FILE       write the conversation as JSON messages; /save! FILE replaces a file that is there
/load FILE       go on with such a conversation
/stats           what the last answer and all of them took, and what drafts were worth
/quit            leave; so does Ctrl-D, and Ctrl-C where nothing is typed
A line that ends in \\ goes on in the next. A message that begins with / is written with two: //
Ctrl-C stops an answer; what was said so far stays in the conversation.
";

/// What was entered.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry {
    /// Something for the model.
    Message(String),
    /// `/help`
    Help,
    /// `/system`; without a text it is shown.
    System(Option<String>),
    /// `/clear`
    Clear,
    /// `/regenerate`
    Regenerate,
    /// `/save`, or `/save!`
    Save { file: PathBuf, replace: bool },
    /// `/load`
    Load(PathBuf),
    /// `/stats`
    Stats,
    /// `/quit`
    Quit,
}

impl Entry {
    /// Tells commands from messages.
    ///
    /// # Errors
    /// What begins like a command and is none, and a command without what it needs, or with what it does not take.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let Some(command) = text.strip_prefix('/') else {
            return Ok(Self::Message(text.to_string()));
        };
        if command.starts_with('/') {
            return Ok(Self::Message(command.to_string()));
        }
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        let alone = |entry| match rest {
            "" => Ok(entry),
            _ => bail!("/{name} takes nothing behind it, and there is {rest:?}"),
        };
        let file = || match rest {
            "" => bail!("/{name} needs the name of a file"),
            _ => Ok(PathBuf::from(rest)),
        };
        match name {
            "help" => alone(Self::Help),
            "system" => Ok(Self::System((!rest.is_empty()).then(|| rest.to_string()))),
            "clear" | "new" => alone(Self::Clear),
            "regenerate" => alone(Self::Regenerate),
            "save" | "save!" => Ok(Self::Save {
                file: file()?,
                replace: name == "save!",
            }),
            "load" => Ok(Self::Load(file()?)),
            "stats" => alone(Self::Stats),
            "quit" => alone(Self::Quit),
            _ => bail!(
                "there is no command /{name}, and nothing was sent: /help lists them, and a message that begins with / is written \
                 //{name}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_messages() {
        let check = |text: &str, want: Entry| assert_eq!(Entry::parse(text).unwrap(), want, "{text}");
        let message = |text: &str| Entry::Message(text.to_string());
        check("hello", message("hello"));
        check(" /help", message(" /help"));
        check("//help", message("/help"));
        check("///", message("//"));
        check("/help", Entry::Help);
        check("/help ", Entry::Help);
        check("/new", Entry::Clear);
        check("/system", Entry::System(None));
        check("/system  be\nbrief ", Entry::System(Some("be\nbrief".into())));
        let save = |file: &str, replace| Entry::Save {
            file: file.into(),
            replace,
        };
        check("/save a b.json", save("a b.json", false));
        check("/save! x", save("x", true));
        check("/load x", Entry::Load("x".into()));
    }

    #[test]
    fn what_is_no_command_is_named() {
        let check = |text: &str, mentions: &str| {
            let error = Entry::parse(text).unwrap_err().to_string();
            assert!(error.contains(mentions), "{text}: {error}");
        };
        check("/nonsense x", "/nonsense");
        check("/usr/bin is a path", "//usr/bin");
        check("/", "no command /,");
        check("/Help", "/Help");
        check("/save", "/save needs");
        check("/load ", "/load needs");
        check("/clear all", "\"all\"");
        check("/quit now", "/quit takes nothing");
    }
}
