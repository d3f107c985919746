//! What the times of whole answers say: each prompt's rate with foretoken against the best of llama.cpp's modes.
use super::median;
use super::speculative::Prompt;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// One answer. Tokens that end it are not counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Answer {
    pub prompt_tokens: f64,
    pub tokens: f64,
    /// From the request to the first token, and from there to the last.
    pub prompt_s: f64,
    pub decode_s: f64,
    pub drafted: f64,
    pub accepted: f64,
}

/// Tokens per second of an answer, if it is long enough to have such a rate.
type Rate = fn(&Answer) -> Option<f64>;

impl Answer {
    fn end_to_end(&self) -> Option<f64> {
        (self.tokens > 0.0).then(|| self.tokens / (self.prompt_s + self.decode_s))
    }

    /// The first token comes with the prompt.
    fn decoding(&self) -> Option<f64> {
        (self.tokens > 1.0 && self.decode_s > 0.0).then(|| (self.tokens - 1.0) / self.decode_s)
    }
}

/// The arms of foretoken; those after them are llama.cpp's modes.
const OURS: [&str; 2] = ["foretoken auto", "foretoken plain"];

/// All answers so far.
pub(super) struct Measurement {
    arms: Vec<String>,
    prompts: Vec<Asked>,
}

/// A prompt, and each arm's answers to it, one of each round.
struct Asked {
    id: String,
    category: String,
    answers: Vec<Vec<Answer>>,
}

/// Our rate on a prompt against the best of theirs.
#[derive(Clone, Copy)]
struct Compared {
    ours: f64,
    theirs: f64,
    /// The arm that it is.
    best: usize,
}

impl Compared {
    fn ratio(self) -> f64 {
        self.ours / self.theirs
    }
}

impl Asked {
    /// The median of the rounds.
    fn rate(&self, arm: usize, rate: Rate) -> Option<f64> {
        let rates: Vec<f64> = self.answers[arm].iter().filter_map(rate).collect();
        (!rates.is_empty()).then(|| median(rates))
    }

    fn compared(&self, rate: Rate) -> Option<Compared> {
        let theirs = (OURS.len()..self.answers.len()).filter_map(|arm| Some((arm, self.rate(arm, rate)?)));
        let (best, theirs) = theirs.max_by(|a, b| a.1.total_cmp(&b.1))?;
        Some(Compared {
            ours: self.rate(0, rate)?,
            theirs,
            best,
        })
    }

    /// Whether a number is another with llama.cpp than with us.
    fn differs(&self, number: fn(&Answer) -> f64) -> bool {
        let mut numbers = self.answers.iter().flatten().map(number);
        let first = numbers.next();
        numbers.any(|number| Some(number) != first)
    }
}

/// How ratios lie.
struct Spread {
    count: usize,
    mean: f64,
    median: f64,
    least: f64,
}

impl Spread {
    fn of(ratios: impl Iterator<Item = f64>) -> Option<Self> {
        let ratios: Vec<f64> = ratios.collect();
        (!ratios.is_empty()).then(|| Self {
            count: ratios.len(),
            mean: ratios.iter().sum::<f64>() / ratios.len() as f64,
            least: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            median: median(ratios),
        })
    }

    fn cells(spread: Option<&Self>) -> String {
        let cells = |s: &Self| format!("{:.2} | {:.2} | {:.2}", s.mean, s.median, s.least);
        spread.map_or("– | – | –".to_owned(), cells)
    }

    fn json(&self) -> Value {
        json!({"prompts": self.count, "mean": self.mean, "median": self.median, "least": self.least})
    }
}

impl Measurement {
    pub fn new(prompts: &[Prompt], modes: &[String]) -> Self {
        let theirs = modes.iter().map(|mode| format!("llama.cpp {mode}"));
        let arms: Vec<String> = OURS.iter().map(|&arm| arm.to_owned()).chain(theirs).collect();
        let asked = |prompt: &Prompt| Asked {
            id: prompt.id.clone(),
            category: prompt.category.clone(),
            answers: vec![Vec::new(); arms.len()],
        };
        Self {
            prompts: prompts.iter().map(asked).collect(),
            arms,
        }
    }

    /// Adds our answers, drafted and plain.
    pub fn add_ours(&mut self, prompt: &str, answers: [Answer; 2]) {
        for (arm, answer) in answers.into_iter().enumerate() {
            self.add(prompt, arm, answer);
        }
    }

    /// Adds the answer of one of llama.cpp's modes.
    pub fn add_theirs(&mut self, prompt: &str, mode: usize, answer: Answer) {
        self.add(prompt, OURS.len() + mode, answer);
    }

    fn add(&mut self, prompt: &str, arm: usize, answer: Answer) {
        let asked = self.prompts.iter_mut().find(|asked| asked.id == prompt);
        asked.expect("only what was asked is answered").answers[arm].push(answer);
    }

    fn spread(&self, rate: Rate, category: Option<&str>) -> Option<Spread> {
        let prompts = self
            .prompts
            .iter()
            .filter(|asked| category.is_none_or(|name| asked.category == name));
        Spread::of(
            prompts
                .filter_map(|asked| asked.compared(rate))
                .map(Compared::ratio),
        )
    }

    fn categories(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for asked in &self.prompts {
            if !names.contains(&&*asked.category) {
                names.push(&asked.category);
            }
        }
        names
    }

    /// One line while it goes on.
    pub fn so_far(&self) -> String {
        self.spread(Answer::end_to_end, None)
            .map_or("nothing yet".to_owned(), |s| {
                format!("mean {:.2}, median {:.2}, least {:.2}", s.mean, s.median, s.least)
            })
    }

    /// A line for each prompt.
    pub fn prompt_table(&self) -> String {
        let mut out =
            "| prompt | category | foretoken, tokens/s | best of llama.cpp, tokens/s | ratio | decoding |\n\
                       |---|---|---|---|---|---|\n"
                .to_owned();
        for asked in &self.prompts {
            let decoding = asked.compared(Answer::decoding);
            let decoding = decoding.map_or("–".to_owned(), |c| format!("{:.2}", c.ratio()));
            let cells = asked
                .compared(Answer::end_to_end)
                .map_or("– | – | –".to_owned(), |c| {
                    format!(
                        "{:.1} | {:.1}, {} | {:.2}",
                        c.ours,
                        c.theirs,
                        self.mode(c.best),
                        c.ratio()
                    )
                });
            line(
                &mut out,
                format_args!("| {} | {} | {cells} | {decoding} |", asked.id, asked.category),
            );
        }
        out
    }

    fn mode(&self, arm: usize) -> &str {
        self.arms[arm].trim_start_matches("llama.cpp ")
    }

    /// The table of ratios, that of arms, and what may be amiss.
    pub fn tables(&self) -> String {
        let mut out = "Times as fast as the best of llama.cpp's modes on each prompt:\n\n\
                       | prompts | number | mean | median | least | decoding: mean | median | least |\n\
                       |---|---|---|---|---|---|---|---|\n"
            .to_owned();
        let categories = self.categories();
        for category in std::iter::once(None).chain(categories.into_iter().map(Some)) {
            let [total, decoding] =
                [Answer::end_to_end, Answer::decoding].map(|rate: Rate| self.spread(rate, category));
            line(
                &mut out,
                format_args!(
                    "| {} | {} | {} | {} |",
                    category.unwrap_or("all"),
                    total.as_ref().map_or(0, |s| s.count),
                    Spread::cells(total.as_ref()),
                    Spread::cells(decoding.as_ref())
                ),
            );
        }
        out.push_str(
            "\n| | tokens/s | decoding | drafts accepted | best of llama.cpp on | foretoken auto is times as fast: mean | \
             median | least |\n|---|---|---|---|---|---|---|---|\n",
        );
        for (arm, name) in self.arms.iter().enumerate() {
            self.arm_line(&mut out, arm, name);
        }
        let names = |number: fn(&Answer) -> f64| -> Vec<&str> {
            let differing = self.prompts.iter().filter(|asked| asked.differs(number));
            differing.map(|asked| &*asked.id).collect()
        };
        let (lengths, other) = (
            names(|answer| answer.tokens),
            names(|answer| answer.prompt_tokens),
        );
        line(
            &mut out,
            format_args!(
                "\nRates are medians over prompts. Answers differ in length between arms or rounds on {} of {} prompts.",
                lengths.len(),
                self.prompts.len()
            ),
        );
        if !other.is_empty() {
            line(
                &mut out,
                format_args!(
                    "The two programs count other tokens in these prompts: {}.",
                    other.join(", ")
                ),
            );
        }
        out
    }

    fn arm_line(&self, out: &mut String, arm: usize, name: &str) {
        let middle = |rate: Rate| -> String {
            let rates: Vec<f64> = self
                .prompts
                .iter()
                .filter_map(|asked| asked.rate(arm, rate))
                .collect();
            if rates.is_empty() {
                "–".to_owned()
            } else {
                format!("{:.1}", median(rates))
            }
        };
        let sum = |number: fn(&Answer) -> f64| -> f64 {
            self.prompts
                .iter()
                .flat_map(|asked| &asked.answers[arm])
                .map(number)
                .sum()
        };
        let (drafted, accepted) = (sum(|answer| answer.drafted), sum(|answer| answer.accepted));
        let share = if drafted > 0.0 {
            format!("{:.0} %", 100.0 * accepted / drafted)
        } else {
            "–".to_owned()
        };
        let ratios = self.prompts.iter().filter_map(|asked| {
            Some(asked.rate(0, Answer::end_to_end)? / asked.rate(arm, Answer::end_to_end)?)
        });
        let best = self
            .prompts
            .iter()
            .filter_map(|asked| asked.compared(Answer::end_to_end));
        let best = if arm < OURS.len() {
            "–".to_owned()
        } else {
            best.filter(|c| c.best == arm).count().to_string()
        };
        let against = if arm == 0 {
            "– | – | –".to_owned()
        } else {
            Spread::cells(Spread::of(ratios).as_ref())
        };
        line(
            out,
            format_args!(
                "| {name} | {} | {} | {share} | {best} | {against} |",
                middle(Answer::end_to_end),
                middle(Answer::decoding),
            ),
        );
    }

    /// Everything, with what is to be known about it.
    pub fn json(&self, about: Value) -> Value {
        let prompt = |asked: &Asked| {
            let arms: BTreeMap<&str, Value> = self.arms.iter().enumerate().map(|(arm, name)| {
                let answer = |a: &Answer| json!({
                    "prompt_tokens": a.prompt_tokens, "tokens": a.tokens, "prompt_s": a.prompt_s, "decode_s": a.decode_s,
                    "drafted": a.drafted, "accepted": a.accepted,
                });
                let answers: Vec<Value> = asked.answers[arm].iter().map(answer).collect();
                (&**name, json!({
                    "tokens_per_second": asked.rate(arm, Answer::end_to_end),
                    "decoding": asked.rate(arm, Answer::decoding),
                    "answers": answers,
                }))
            }).collect();
            let against = |rate: Rate| {
                asked
                    .compared(rate)
                    .map(|c| json!({"best": self.arms[c.best], "ratio": c.ratio()}))
            };
            json!({
                "id": asked.id, "category": asked.category, "end_to_end": against(Answer::end_to_end),
                "decoding": against(Answer::decoding), "arms": arms,
            })
        };
        let spreads = |category: Option<&str>| {
            json!({
                "end_to_end": self.spread(Answer::end_to_end, category).as_ref().map(Spread::json),
                "decoding": self.spread(Answer::decoding, category).as_ref().map(Spread::json),
            })
        };
        let categories: BTreeMap<&str, Value> = self
            .categories()
            .into_iter()
            .map(|name| (name, spreads(Some(name))))
            .collect();
        json!({
            "about": about,
            "all": spreads(None),
            "categories": categories,
            "prompts": self.prompts.iter().map(prompt).collect::<Vec<_>>(),
        })
    }
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("a string takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of 11 tokens, at so many tokens per second end to end, half of the time in the prompt.
    fn answer(rate: f64) -> Answer {
        let half = 11.0 / rate / 2.0;
        Answer {
            prompt_tokens: 5.0,
            tokens: 11.0,
            prompt_s: half,
            decode_s: half,
            drafted: 0.0,
            accepted: 0.0,
        }
    }

    /// Two prompts of one category and one of another; rates of our drafts, our plain decoding, and two modes.
    fn measured() -> Measurement {
        let prompts = [("a", "x"), ("b", "x"), ("c", "y")].map(|(id, category)| Prompt {
            id: id.to_owned(),
            category: category.to_owned(),
            text: String::new(),
        });
        let mut all = Measurement::new(&prompts, &["plain".to_owned(), "ngram-mod".to_owned()]);
        for (prompt, [ours, plain, first, second]) in [
            ("a", [30.0, 12.0, 10.0, 8.0]),
            ("b", [24.0, 12.0, 8.0, 16.0]),
            ("c", [11.0, 11.0, 11.0, 10.0]),
        ] {
            // What one round in three is off by is no one's figure.
            for noise in [1.0, 0.5, 1.0] {
                let drafted = Answer {
                    drafted: 8.0,
                    accepted: 6.0,
                    ..answer(noise * ours)
                };
                all.add_ours(prompt, [drafted, answer(plain / noise)]);
                all.add_theirs(prompt, 0, answer(first / noise));
                all.add_theirs(prompt, 1, answer(second * noise));
            }
        }
        all
    }

    #[test]
    fn each_prompt_is_held_against_the_best_mode() {
        let mut all = measured();
        let tables = all.tables();
        for line in [
            "| all | 3 | 1.83 | 1.50 | 1.00 | 1.83 | 1.50 | 1.00 |",
            "| x | 2 | 2.25 | 1.50 | 1.50 | 2.25 | 1.50 | 1.50 |",
            "| y | 1 | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 |",
            // Ten of eleven tokens in half of the time.
            "| foretoken auto | 24.0 | 43.6 | 75 % | – | – | – | – |",
            "| foretoken plain | 12.0 | 21.8 | – | – | 1.83 | 2.00 | 1.00 |",
            "| llama.cpp plain | 10.0 | 18.2 | – | 2 | 2.33 | 3.00 | 1.00 |",
            "| llama.cpp ngram-mod | 10.0 | 18.2 | – | 1 | 2.12 | 1.50 | 1.10 |",
            "rounds on 0 of 3",
        ] {
            assert!(tables.contains(line), "{line} in {tables}");
        }
        assert!(!tables.contains("count other tokens"));
        assert!(
            all.prompt_table()
                .contains("| b | x | 24.0 | 16.0, ngram-mod | 1.50 | 1.50 |")
        );
        assert_eq!(all.so_far(), "mean 1.83, median 1.50, least 1.00");

        let json = all.json(json!({"threads": 2}));
        assert_eq!(json["about"]["threads"], 2);
        let mean = json["categories"]["x"]["end_to_end"]["mean"].as_f64().unwrap();
        assert_eq!(format!("{mean:.4}"), "2.2500");
        assert_eq!(json["prompts"][1]["end_to_end"]["best"], "llama.cpp ngram-mod");
        assert_eq!(
            json["prompts"][2]["arms"]["llama.cpp plain"]["answers"]
                .as_array()
                .unwrap()
                .len(),
            3
        );

        all.add_theirs(
            "b",
            0,
            Answer {
                tokens: 12.0,
                prompt_tokens: 6.0,
                ..answer(1.0)
            },
        );
        let tables = all.tables();
        assert!(tables.contains("rounds on 1 of 3"), "{tables}");
        assert!(tables.contains("other tokens in these prompts: b."), "{tables}");
    }

    #[test]
    fn answers_too_short_for_a_rate_are_left_out() {
        let mut all = measured();
        for asked in &mut all.prompts[1..] {
            for answer in asked.answers.iter_mut().flatten() {
                answer.tokens = if asked.id == "b" { 1.0 } else { 0.0 };
            }
        }
        let tables = all.tables();
        assert!(
            tables.contains("| x | 2 | 2.25 | 1.50 | 1.50 | 3.00 | 3.00 | 3.00 |"),
            "{tables}"
        );
        assert!(tables.contains("| y | 0 | – | – | – | – | – | – |"), "{tables}");
        assert!(Measurement::new(&[], &[]).tables().contains("| all | 0 | – "));
    }
}
