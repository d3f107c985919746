//! What was said so far, in memory and in files.
//!
//! Not here: whether it fits the model's template and context.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use foretoken::Message;
use serde::{Deserialize, Serialize};

use crate::run::read_text;

/// A conversation: a system message, if there is one, and what users and the model said in turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    pub system: Option<String>,
    turns: Vec<Turn>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Turn {
    role: Role,
    content: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    System,
    User,
    Assistant,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

impl Conversation {
    /// Nothing said yet.
    pub fn new(system: Option<String>) -> Self {
        Self {
            system,
            turns: Vec::new(),
        }
    }

    /// Messages, the system's not counted.
    pub fn len(&self) -> usize {
        self.turns.len()
    }

    /// Whether the model is to speak next.
    pub fn awaits_answer(&self) -> bool {
        self.turns.last().is_some_and(|turn| turn.role == Role::User)
    }

    /// With a message of the user's.
    pub fn ask(&self, text: impl Into<String>) -> Self {
        self.with(Role::User, text.into())
    }

    /// With an answer.
    pub fn answer(&self, text: impl Into<String>) -> Self {
        self.with(Role::Assistant, text.into())
    }

    /// Up to the last message of the user's; `None` if the model was not asked anything.
    pub fn without_answer(&self) -> Option<Self> {
        let mut asked = self.clone();
        if !asked.awaits_answer() {
            asked.turns.pop();
        }
        asked.awaits_answer().then_some(asked)
    }

    fn with(&self, role: Role, content: String) -> Self {
        let mut more = self.clone();
        more.turns.push(Turn { role, content });
        more
    }

    fn all(&self) -> Vec<Turn> {
        let system = self.system.iter().map(|text| Turn {
            role: Role::System,
            content: text.clone(),
        });
        system.chain(self.turns.iter().cloned()).collect()
    }

    /// As a chat template takes it.
    pub fn messages(&self) -> Vec<Message> {
        let turns = self.all().into_iter();
        turns
            .map(|turn| Message::new(turn.role.name(), turn.content))
            .collect()
    }

    /// Writes it as a JSON array of `{"role", "content"}`. A file that is there already is left alone, or with `replace` replaced
    /// as a whole.
    ///
    /// # Errors
    /// What keeps the file from being written; each names it.
    pub fn save(&self, file: &Path, replace: bool) -> anyhow::Result<()> {
        let name = || file.display().to_string();
        let json = serde_json::to_string_pretty(&self.all())? + "\n";
        let mut part = file.as_os_str().to_owned();
        part.push(format!(".{}.part", std::process::id()));
        let target = match replace {
            true => Path::new(&part),
            false => file,
        };
        let mut new = match File::create_new(target) {
            Err(error) if !replace && error.kind() == std::io::ErrorKind::AlreadyExists => {
                bail!("{} is there already: /save! replaces it", name())
            }
            created => created.with_context(name)?,
        };
        let mut written = new.write_all(json.as_bytes());
        if replace && written.is_ok() {
            written = std::fs::rename(target, file);
        }
        if let Err(error) = written {
            let _ = std::fs::remove_file(target);
            return Err(error).with_context(name);
        }
        Ok(())
    }

    /// Reads what [`save`](Self::save) writes.
    ///
    /// # Errors
    /// What cannot be read, or is no conversation; each names the file and the place.
    pub fn load(file: &Path) -> anyhow::Result<Self> {
        let name = file.display().to_string();
        let opened = File::open(file).with_context(|| name.clone())?;
        let text = read_text(opened, &name)?;
        let mut turns: Vec<Turn> = serde_json::from_str(&text).with_context(|| name.clone())?;
        let system = match turns.first() {
            Some(first) if first.role == Role::System => Some(turns.remove(0).content),
            _ => None,
        };
        if let Some(at) = turns.iter().position(|turn| turn.role == Role::System) {
            let at = at + 1 + usize::from(system.is_some());
            bail!("{name}: message {at} is of the system, which may only be the first");
        }
        if turns.is_empty() {
            bail!("{name}: nothing is said in it");
        }
        Ok(Self { system, turns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation() -> Conversation {
        Conversation::new(Some("be brief".into()))
            .ask("hen?")
            .answer("\u{1b}\"egg\"\n")
    }

    #[test]
    fn a_file_gives_back_what_was_saved() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a conversation.json");
        for said in [conversation(), Conversation::new(None).ask("hen?")] {
            said.save(&file, true).unwrap();
            assert_eq!(Conversation::load(&file).unwrap(), said);
        }
        let error = conversation().save(&file, false).unwrap_err().to_string();
        assert!(
            error.contains("a conversation.json") && error.contains("/save!"),
            "{error}"
        );
        assert_eq!(
            Conversation::load(&file).unwrap(),
            Conversation::new(None).ask("hen?")
        );
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            1,
            "nothing is left over"
        );
        let error = conversation()
            .save(&dir.path().join("no/such/x"), true)
            .unwrap_err();
        assert!(format!("{error:#}").contains("no/such/x"), "{error:#}");
    }

    #[test]
    fn what_is_no_conversation_is_an_error_that_says_where() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.json");
        let check = |text: &str, mentions: &str| {
            std::fs::write(&file, text).unwrap();
            let error = format!("{:#}", Conversation::load(&file).unwrap_err());
            assert!(
                error.contains("x.json") && error.contains(mentions),
                "{text}: {error}"
            );
        };
        check("", "line 1");
        check("{}", "line 1");
        check("[]", "nothing is said");
        check(r#"[{"role": "system", "content": "x"}]"#, "nothing is said");
        check(r#"[{"role": "tool", "content": "x"}]"#, "tool");
        check(r#"[{"role": "user"}]"#, "content");
        check(r#"[{"role": "user", "content": "x", "name": "y"}]"#, "name");
        check(
            r#"[{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]"#,
            "message 2",
        );
    }

    #[test]
    fn an_answer_is_taken_back_alone() {
        let said = conversation();
        let asked = said.without_answer().unwrap();
        assert_eq!(asked, Conversation::new(Some("be brief".into())).ask("hen?"));
        assert_eq!(asked.without_answer(), Some(asked.clone()), "it was not answered");
        assert_eq!(Conversation::new(None).without_answer(), None);
        assert_eq!(Conversation::new(None).answer("x").without_answer(), None);
    }
}
