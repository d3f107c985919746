//! Counters for Prometheus. Those of speculation have the names that vLLM gives them, so that dashboards need no change.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foretoken_engine::{FinishReason, Progress, Stats, Totals};
use foretoken_spec::Pages;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};

/// The content type of [`Metrics::text`].
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Position {
    position: usize,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Reason {
    reason: String,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Answered {
    path: String,
    status: u16,
}

type Seconds = Counter<f64, AtomicU64>;

/// All that is counted.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    drafts: Counter,
    draft_tokens: Counter,
    accepted_tokens: Counter,
    accepted_per_position: Family<Position, Counter>,
    tokens: Counter,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    draft_seconds: Seconds,
    pass_seconds: Seconds,
    verify_seconds: Seconds,
    passes: Counter,
    rows: Counter,
    rows_per_pass: Histogram,
    plain_rounds: Family<Reason, Counter>,
    drafting_off: Counter,
    finished: Family<Reason, Counter>,
    answered: Family<Answered, Counter>,
    running: Gauge,
    waiting: Gauge,
    pages: Gauge,
    free_pages: Gauge,
    queue_time: Histogram,
    first_token: Histogram,
    between_tokens: Histogram,
    request_time: Histogram,
    /// Milliseconds that a request takes, lately.
    typical: AtomicU64,
}

/// Registers a metric. `_total` is added to the names of counters.
fn add<T: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: T) -> T {
    registry.register(name, help, metric.clone());
    metric
}

impl Metrics {
    pub fn new() -> Self {
        let seconds = || Histogram::new(exponential_buckets(0.005, 2.0, 16));
        let rows = [
            1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0, 256.0,
        ];
        let mut registry = Registry::default();
        let r = &mut registry;
        Self {
            drafts: add(
                r,
                "vllm:spec_decode_num_drafts",
                "Rounds with a draft",
                Counter::default(),
            ),
            draft_tokens: add(
                r,
                "vllm:spec_decode_num_draft_tokens",
                "Draft tokens that were verified",
                Counter::default(),
            ),
            accepted_tokens: add(
                r,
                "vllm:spec_decode_num_accepted_tokens",
                "Draft tokens that were accepted",
                Counter::default(),
            ),
            accepted_per_position: add(
                r,
                "vllm:spec_decode_num_accepted_tokens_per_pos",
                "Accepted draft tokens by their place in the draft",
                Family::default(),
            ),
            tokens: add(r, "foretoken:tokens", "Tokens generated", Counter::default()),
            prompt_tokens: add(
                r,
                "foretoken:prompt_tokens",
                "Tokens of prompts",
                Counter::default(),
            ),
            cached_tokens: add(
                r,
                "foretoken:cached_tokens",
                "Tokens of prompts that another sequence had computed",
                Counter::default(),
            ),
            draft_seconds: add(
                r,
                "foretoken:draft_seconds",
                "Time of drafting",
                Seconds::default(),
            ),
            pass_seconds: add(
                r,
                "foretoken:pass_seconds",
                "Time of the target's passes",
                Seconds::default(),
            ),
            verify_seconds: add(
                r,
                "foretoken:verify_seconds",
                "Time of the target's passes that verified drafts",
                Seconds::default(),
            ),
            passes: add(r, "foretoken:passes", "Passes of the target", Counter::default()),
            rows: add(
                r,
                "foretoken:rows",
                "Rows of the target's passes",
                Counter::default(),
            ),
            rows_per_pass: add(
                r,
                "foretoken:rows_per_pass",
                "Rows of a pass",
                Histogram::new(rows),
            ),
            plain_rounds: add(
                r,
                "foretoken:plain_rounds",
                "Rounds without a draft, by reason",
                Family::default(),
            ),
            drafting_off: add(
                r,
                "foretoken:drafting_off",
                "Sequences that went on without drafts because a drafter failed",
                Counter::default(),
            ),
            finished: add(
                r,
                "foretoken:finished",
                "Choices that ended, by reason",
                Family::default(),
            ),
            answered: add(
                r,
                "foretoken:http_requests",
                "Requests answered",
                Family::default(),
            ),
            running: add(
                r,
                "foretoken:running",
                "Sequences being generated",
                Gauge::default(),
            ),
            waiting: add(r, "foretoken:waiting", "Choices in the queue", Gauge::default()),
            pages: add(r, "foretoken:kv_pages", "Pages of the KV cache", Gauge::default()),
            free_pages: add(
                r,
                "foretoken:kv_pages_free",
                "Pages that hold nothing",
                Gauge::default(),
            ),
            queue_time: add(r, "foretoken:queue_time_seconds", "Time in the queue", seconds()),
            first_token: add(
                r,
                "foretoken:time_to_first_token_seconds",
                "Time from a request to its first token",
                seconds(),
            ),
            between_tokens: add(
                r,
                "foretoken:time_between_tokens_seconds",
                "Time of a round by the tokens that it brought",
                seconds(),
            ),
            request_time: add(
                r,
                "foretoken:request_time_seconds",
                "Time from a request to its last token",
                Histogram::new(exponential_buckets(0.05, 2.0, 14)),
            ),
            typical: AtomicU64::new(1000),
            registry,
        }
    }

    /// All of it, as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a string takes everything");
        text
    }

    pub fn memory(&self, pages: Pages) {
        self.pages.set(pages.total as i64);
        self.free_pages.set(pages.free as i64);
    }

    pub fn load(&self, running: usize, waiting: usize) {
        self.running.set(running as i64);
        self.waiting.set(waiting as i64);
    }

    /// What the rounds since `before` took.
    pub fn round(&self, before: &Totals, now: &Totals) {
        let passes = now.passes - before.passes;
        self.passes.inc_by(passes);
        self.rows.inc_by(now.rows - before.rows);
        if passes > 0 {
            self.rows_per_pass
                .observe((now.rows - before.rows) as f64 / passes as f64);
        }
        self.draft_seconds
            .inc_by((now.draft - before.draft).as_secs_f64());
        self.pass_seconds.inc_by((now.pass - before.pass).as_secs_f64());
        self.verify_seconds
            .inc_by((now.verify - before.verify).as_secs_f64());
    }

    pub fn progress(&self, progress: &Progress) {
        self.tokens.inc_by(progress.tokens.len() as u64);
        let Some(round) = &progress.round else { return };
        if let Some(reason) = round.forecast.and_then(|forecast| forecast.plain) {
            let reason = reason.name().to_string();
            self.plain_rounds.get_or_create(&Reason { reason }).inc();
        }
        if round.rows > 1 {
            self.drafts.inc();
            self.draft_tokens.inc_by(round.rows as u64 - 1);
            self.accepted_tokens.inc_by(round.accepted as u64);
            for position in 0..round.accepted {
                self.accepted_per_position
                    .get_or_create(&Position { position })
                    .inc();
            }
        }
    }

    pub fn drafting_off(&self) {
        self.drafting_off.inc();
    }

    pub fn queued(&self, time: Duration) {
        self.queue_time.observe(time.as_secs_f64());
    }

    pub fn first_token(&self, time: Duration) {
        self.first_token.observe(time.as_secs_f64());
    }

    /// So many tokens came together, so long after those before.
    pub fn tokens(&self, time: Duration, count: usize) {
        for _ in 0..count {
            self.between_tokens.observe(time.as_secs_f64() / count as f64);
        }
    }

    pub fn finished(&self, time: Duration, reason: Option<FinishReason>, stats: &Stats) {
        let reason = reason.map_or("error", FinishReason::as_str).to_string();
        self.finished.get_or_create(&Reason { reason }).inc();
        self.prompt_tokens.inc_by(stats.prompt_tokens as u64);
        self.cached_tokens.inc_by(stats.cached_tokens as u64);
        self.request_time.observe(time.as_secs_f64());
        let before = self.typical.load(Ordering::Relaxed);
        self.typical
            .store((7 * before + time.as_millis() as u64) / 8, Ordering::Relaxed);
    }

    pub fn answered(&self, path: &str, status: u16) {
        let path = path.to_string();
        self.answered.get_or_create(&Answered { path, status }).inc();
    }

    /// Seconds after which a place in a queue that `parallel` work on should be free.
    pub fn retry_after(&self, parallel: usize) -> u64 {
        let millis = self.typical.load(Ordering::Relaxed) / parallel.max(1) as u64;
        millis.div_ceil(1000).clamp(1, 60)
    }
}
