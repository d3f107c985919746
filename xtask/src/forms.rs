//! What grammars and predictions are worth: measured against a server of ours.
use crate::clients::{PACKAGES, place};
use crate::server::Server;
use crate::{command, models, python};
use anyhow::{Context, Result};
use serde_json::Value;
use std::process::Command;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// JSON of twenty schemas: valid, the same with drafts, and what the grammar costs
    Schemas {
        /// Answers of each schema
        #[arg(long, default_value_t = 10)]
        seeds: u32,
        /// Of Qwen2.5-Coder 1.5B instead of SmolLM2
        #[arg(long)]
        qwen: bool,
    },
    /// Files edited by Qwen2.5-Coder 1.5B: plainly, with the suffix drafter, and with the file as prediction
    Edits,
}

/// Measures, and prints a table.
pub fn run(args: &Args) -> Result<()> {
    let (qwen, threads) = (!matches!(args.what, What::Schemas { qwen: false, .. }), "2");
    let model = if qwen {
        &models::QWEN_1_5B
    } else {
        &models::SMOLLM2
    };
    let path = model.path(&models::ensure([model])?);
    let path = path.to_str().context("a path that is text")?;
    let python = python::environment("clients", &PACKAGES)?;
    let script = place("forms.py", include_str!("clients/forms.py"))?;
    eprintln!("building foretoken (release)");
    command::run(command::cargo("build").args(["--release", "--package", "foretoken"]))?;
    // Whatever was computed before is computed again: times are whole.
    let server = Server::start(
        &command::foretoken()?,
        &[
            "-m",
            path,
            "-t",
            threads,
            "-c",
            "4096",
            "--parallel",
            "1",
            "--prefixes",
            "0",
        ],
    )?;
    let ask = |mode: &str, rest: &[&str]| -> Result<Value> {
        let mut script_command = Command::new(&python);
        let printed = command::capture(script_command.arg(&script).args([mode, &server.url()]).args(rest))?;
        serde_json::from_slice(&printed).context("the script printed no JSON")
    };
    let bench = command::root().join("bench");
    match &args.what {
        What::Schemas { seeds, .. } => {
            let file = bench.join("schemas.json");
            let seen = ask("schemas", &[&file.to_string_lossy(), &seeds.to_string()])?;
            println!("{}: {seen}", model.title);
        }
        What::Edits => {
            let rows = ask("edits", &[&bench.join("edits").to_string_lossy()])?;
            println!("{}", edits_table(&rows)?);
        }
    }
    server.stop()?;
    Ok(())
}

fn edits_table(rows: &Value) -> Result<String> {
    let mut table = String::from(
        "| file | lines | tokens | plain, s | suffix | with the prediction | tokens a round | accepted / rejected |\n|---|---|---|---|---|---|---|---|\n",
    );
    let (mut suffix_sum, mut predicted_sum) = (0.0, 0.0);
    let rows = rows.as_array().context("rows")?;
    for row in rows {
        let number = |name: &str| row[name].as_f64().with_context(|| format!("no {name}"));
        let (suffix, predicted) = (
            number("plain")? / number("suffix")?,
            number("plain")? / number("predicted")?,
        );
        suffix_sum += suffix;
        predicted_sum += predicted;
        table.push_str(&format!(
            "| {} | {} | {} | {:.1} | {suffix:.2} | {predicted:.2} | {:.2} | {} / {} |\n",
            row["file"].as_str().unwrap_or_default(),
            row["lines"],
            row["tokens"],
            number("plain")?,
            number("tokens")? / number("rounds")?,
            row["accepted"],
            row["rejected"],
        ));
    }
    let count = rows.len() as f64;
    table.push_str(&format!(
        "\nEnd to end, prompts included: mean {:.2} with the suffix drafter, {:.2} with the prediction.",
        suffix_sum / count,
        predicted_sum / count
    ));
    Ok(table)
}
