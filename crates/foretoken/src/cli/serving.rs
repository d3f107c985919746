//! The arguments of `foretoken serve`.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{DraftArgs, DraftModelArgs, ModelArg, ThreadArgs};

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One object a line
    Json,
}

#[derive(Debug, Args)]
#[command(
    after_help = "SIGTERM or Ctrl-C ends it when the requests that were taken are answered; a second one ends it at once. \
                  RUST_LOG sets what is logged (default: info).\n\nExit status: 0 ended as asked, 1 failed, 2 wrong usage, \
                  130 ended at once."
)]
pub struct ServeArgs {
    /// The model that answers: a GGUF file, or the name of one that was pulled
    #[arg(short, long, value_name = "TARGET")]
    pub model: ModelArg,
    #[command(flatten)]
    pub draft: DraftModelArgs,
    #[command(flatten)]
    pub drafting: DraftArgs,

    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub port: u16,
    /// What the model is called [default: the file's name]
    #[arg(short, long, value_name = "NAME")]
    pub alias: Option<String>,
    #[command(flatten)]
    pub threads: ThreadArgs,

    /// Sequences that are generated at once
    #[arg(long, visible_alias = "np", value_name = "N", default_value_t = 4, help_heading = "Batching",
          value_parser = clap::value_parser!(u32).range(1..=256))]
    pub parallel: u32,
    /// Positions of a sequence [default: the model's own, at most 4096]
    #[arg(short, long = "ctx-size", visible_alias = "context", value_name = "N", help_heading = "Batching",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub context: Option<u32>,
    /// Memory for keys and values, such as 512M or 2G: with less than all contexts need, sequences may have to wait
    /// [default: --parallel contexts]
    #[arg(long, value_name = "SIZE", help_heading = "Batching", value_parser = size)]
    pub kv_memory: Option<u64>,
    /// Choices that may wait; more are refused with 429
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = "Batching",
          value_parser = clap::value_parser!(u32).range(0..=65_536))]
    pub queue: u32,
    /// Milliseconds that a pass which reads a prompt should not exceed: others wait for it
    #[arg(long, value_name = "MS", default_value_t = 250, help_heading = "Batching",
          value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub max_stall: u32,
    /// Ended sequences that the cache remembers, as far as there is room, for others that begin alike
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = "Batching",
          value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub prefixes: u32,
    /// Seconds that a request may take
    #[arg(long, value_name = "S", default_value_t = 600, help_heading = "Batching",
          value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub timeout: u32,

    /// Key that requests need (may be given several times; other users of the machine can see arguments)
    #[arg(long, value_name = "KEY", env = "FORETOKEN_API_KEY", hide_env_values = true, help_heading = "Access",
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub api_key: Vec<String>,
    /// File with such keys, one a line
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    pub api_key_file: Option<PathBuf>,
    /// Name by which clients may call this machine, besides its addresses and localhost (may be given several times)
    #[arg(long, value_name = "NAME", help_heading = "Access")]
    pub allow_host: Vec<String>,
    /// Origin of pages that may call the server, such as https://app.example (may be given several times)
    #[arg(long, value_name = "ORIGIN", help_heading = "Access", value_parser = origin)]
    pub cors_origin: Vec<String>,

    /// How log lines are written to standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

impl ServeArgs {
    /// What clap's own rules cannot say.
    pub fn check(&self) -> Result<(), String> {
        self.drafting.check(&self.draft)
    }

    /// How long a request may take.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout.into())
    }
}

/// `512M`: bytes, with a binary unit if there is one.
fn size(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let shift = match unit
        .to_ascii_lowercase()
        .trim_end_matches("ib")
        .trim_end_matches('b')
    {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(format!("{unit:?} is no unit: K, M, G or T")),
    };
    let number: u64 = digits.parse().map_err(|_| "not a number of bytes".to_string())?;
    let bytes = number.checked_mul(1 << shift).filter(|&bytes| bytes > 0);
    bytes.ok_or_else(|| "must be more than 0 and below 16 EiB".to_string())
}

/// `https://app.example:8443`: nothing before, nothing behind.
fn origin(text: &str) -> Result<String, String> {
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    match rest {
        Some(rest) if !rest.is_empty() && !rest.contains(['/', '*', '@', ' ']) => {
            Ok(text.to_ascii_lowercase())
        }
        _ => Err("must be like https://app.example, without a path".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("512M"), Ok(512 << 20));
        assert_eq!(size("2g"), Ok(2 << 30));
        assert_eq!(size("3GiB"), Ok(3 << 30));
        assert_eq!(size("4096"), Ok(4096));
        for wrong in ["", "M", "1.5G", "-1", "0", "7X", "99999999999T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn origins_are_no_more_than_that() {
        assert_eq!(
            origin("https://App.example"),
            Ok("https://app.example".to_string())
        );
        assert!(origin("http://localhost:3000").is_ok());
        for wrong in [
            "*",
            "app.example",
            "https://",
            "https://a/b",
            "https://*.a",
            "file://x",
        ] {
            assert!(origin(wrong).is_err(), "{wrong}");
        }
    }
}
