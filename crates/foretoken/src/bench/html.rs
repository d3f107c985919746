//! The page of `bench speed --report`: pictures first, then the figures. One file that needs nothing else.

use std::fmt::Write;

use foretoken::Session;

use super::plot;
use super::speed::Report;
use crate::cli::SpeedArgs;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#1a1a1a;\
background:#fff}h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}.big{display:flex;gap:2em;flex-wrap:wrap}.big div{\
min-width:7em}.big b{display:block;font-size:2em;line-height:1.2}.worse{color:#b3261e}svg{max-width:100%;height:auto}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.2em .8em;text-align:right;border-bottom:\
1px solid #ddd}td:first-child,th:first-child{text-align:left}";

/// The page.
pub fn page(args: &SpeedArgs, session: &Session, reports: &[Report]) -> anyhow::Result<String> {
    let mut out = String::new();
    let typed = args.model.to_string();
    let name = std::path::Path::new(&typed).file_name().unwrap_or_default();
    let model = escaped(&name.to_string_lossy());
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>foretoken: {model}</title><style>{STYLE}</style>\n<h1>{model}: what \
         speculation is worth</h1>\n<p>{} prompts, at most {} tokens each, temperature {}, {} threads; medians of {} \
         repetitions, plain and speculative decoding in turn. Times are from the request to the last token.</p>\n",
        reports[0].questions.len(),
        args.predict,
        args.temp,
        session.compute().pool().threads(),
        args.repeat,
    )?;
    for report in reports {
        let figure = |label: &str, ratio: f64| {
            let class = if ratio < 0.995 { " class=\"worse\"" } else { "" };
            format!("<div{class}><b>{ratio:.2}×</b>{label}</div>")
        };
        write!(
            out,
            "<h2>Drafter {}</h2>\n<div class=\"big\">{}{}{}{}<div><b>{}</b>tokens</div></div>\n",
            report.drafter,
            figure("mean", report.mean_ratio),
            figure("median", report.median_ratio),
            figure("least", report.min_ratio),
            figure("total time", report.total_time_ratio),
            if report.same_tokens { "same" } else { "DIFFER" },
        )?;
        let rates: Vec<_> = (report.questions.iter())
            .map(|q| (q.id.as_str(), q.plain_tps, q.spec_tps))
            .collect();
        write!(
            out,
            "<h2>Tokens per second, prompt by prompt</h2>\n{}\n",
            plot::rates(&rates)?
        )?;
        let most = report
            .questions
            .iter()
            .map(|q| q.accepted_per_position.len())
            .max();
        let accepted: Vec<usize> = (0..most.unwrap_or(0))
            .map(|at| {
                let counts = report.questions.iter();
                counts
                    .map(|q| q.accepted_per_position.get(at).copied().unwrap_or(0))
                    .sum()
            })
            .collect();
        write!(
            out,
            "<h2>Accepted draft tokens by depth</h2>\n{}\n",
            plot::counts(&accepted)?
        )?;
        let times: Vec<_> = (report.questions.iter())
            .map(|q| {
                let s = q.seconds;
                (q.id.as_str(), [s.prompt, s.draft, s.target, s.other])
            })
            .collect();
        write!(out, "<h2>Where the time went</h2>\n{}\n", plot::times(&times)?)?;
        out.push_str(
            "<h2>Figures</h2>\n<table><tr><th>prompt<th>tokens<th>plain tok/s<th>spec. tok/s<th>ratio<th>decode\
             <th>tokens per round<th>accepted<th>predicted ratio</tr>\n",
        );
        let dash = |value: Option<f64>| value.map_or("–".to_owned(), |v| format!("{v:.2}"));
        for q in &report.questions {
            writeln!(
                out,
                "<tr><td>{}<td>{}<td>{:.1}<td>{:.1}<td{}>{:.2}<td>{:.2}<td>{}<td>{} of {}<td>{}</tr>",
                escaped(&q.id),
                q.tokens,
                q.plain_tps,
                q.spec_tps,
                if q.ratio < 0.995 { " class=\"worse\"" } else { "" },
                q.ratio,
                q.decode_ratio,
                dash(q.tokens_per_round),
                q.accepted,
                q.drafted,
                dash(q.predicted_ratio),
            )?;
        }
        out.push_str("</table>\n");
    }
    if let Some(cost) = session.cost() {
        let points: Vec<_> = cost.points().iter().map(|p| (p.rows, 1e3 * p.seconds)).collect();
        write!(
            out,
            "<h2>What a pass over n rows costs here</h2>\n{}\n",
            plot::passes(&points)?
        )?;
    }
    Ok(out)
}

/// Text that is no markup.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
