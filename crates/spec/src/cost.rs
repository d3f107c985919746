//! What a pass costs: T(n, context), the seconds of a model's pass over n rows after so many positions.
//!
//! A table, measured at start, gives each number of rows its time without context; attention adds the same for each row
//! and position. Every pass refines it: one factor follows the machine's speed, which changes for all numbers of rows at
//! once; a slow correction for each number of rows and the price of a position follow what is left. One observation moves
//! nothing by more than a step, so that a pass that was disturbed does not count more than others.
//!
//! Not here: how the table is measured (that needs a model), what drafts are worth ([`controller`](crate::controller)).

/// A measurement of a pass without context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostPoint {
    /// Rows of the pass.
    pub rows: usize,
    /// Seconds that it took.
    pub seconds: f64,
}

/// Seconds of a pass by rows and context.
#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
    /// Ascending in rows, never descending in seconds.
    points: Vec<CostPoint>,
    /// Seconds of a row for each position of its context.
    position: f64,
    /// How many times as long as in the table everything takes now.
    speed: f64,
}

/// At this context attention is taken to add a quarter to a pass of one row, until passes tell.
const QUARTER_CONTEXT: f64 = 4096.0;
/// An observation that is off by more counts as off by this, in nats.
const MOST_SURPRISE: f64 = 0.3;
/// What of a surprise the machine's speed takes over at once.
const SPEED_GAIN: f64 = 0.2;
/// What of it the table, or the price of a position, takes over.
const SHAPE_GAIN: f64 = 0.03;

impl CostModel {
    /// From measurements, of which one at least is of one row; of several with as many rows the least counts: what
    /// disturbs a pass makes it longer.
    ///
    /// # Panics
    /// If there is none of one row, or seconds that are not positive.
    pub fn new(mut measured: Vec<CostPoint>) -> Self {
        measured.sort_by(|a, b| a.rows.cmp(&b.rows).then(a.seconds.total_cmp(&b.seconds)));
        let mut points: Vec<CostPoint> = Vec::new();
        for same in measured.chunk_by(|a, b| a.rows == b.rows) {
            let fastest = same[0];
            assert!(fastest.seconds > 0.0, "time passes");
            // More rows never take less: what seems so is noise.
            let least = points.last().map_or(0.0, |before| before.seconds);
            points.push(CostPoint {
                seconds: fastest.seconds.max(least),
                ..fastest
            });
        }
        assert!(
            points.first().is_some_and(|p| p.rows == 1),
            "one row was measured"
        );
        let position = 0.25 * points[0].seconds / QUARTER_CONTEXT;
        Self {
            points,
            position,
            speed: 1.0,
        }
    }

    /// Takes over what a pass over one row without context takes now; the table keeps its shape.
    ///
    /// # Panics
    /// If the seconds are not positive.
    pub fn set_one_row(&mut self, seconds: f64) {
        assert!(seconds > 0.0, "time passes");
        self.speed = seconds / self.points[0].seconds;
    }

    /// The table as it stands, without the machine's present speed.
    pub fn points(&self) -> &[CostPoint] {
        &self.points
    }

    /// Seconds of a pass over `rows` rows that each follow `context` positions.
    pub fn seconds(&self, rows: usize, context: usize) -> f64 {
        self.speed * (self.table(rows) + self.position * (rows * context) as f64)
    }

    /// The most rows, up to `most`, that fit in so many seconds beside `others`.
    pub fn rows_within(&self, seconds: f64, others: usize, most: usize, context: usize) -> usize {
        // More rows never take less.
        let (mut low, mut high) = (0, most + 1);
        while low + 1 < high {
            let middle = (low + high) / 2;
            match self.seconds(others + middle, context) <= seconds {
                true => low = middle,
                false => high = middle,
            }
        }
        low
    }

    /// Seconds without context: between two points on the line, beyond the last one as between the last two.
    fn table(&self, rows: usize) -> f64 {
        let rows = rows.max(1);
        let after = self.points.partition_point(|p| p.rows < rows);
        let (a, b) = match self.points.get(after) {
            Some(exact) if exact.rows == rows => return exact.seconds,
            Some(_) if after > 0 => (after - 1, after),
            _ if self.points.len() > 1 => (self.points.len() - 2, self.points.len() - 1),
            _ => return self.points[0].seconds * rows as f64,
        };
        let (a, b) = (self.points[a], self.points[b]);
        let slope = (b.seconds - a.seconds) / (b.rows - a.rows) as f64;
        (a.seconds + slope * (rows as f64 - a.rows as f64)).max(0.0)
    }

    /// Takes in what a pass took.
    pub fn observe(&mut self, rows: usize, context: usize, seconds: f64) {
        let predicted = self.seconds(rows, context);
        if rows == 0 || !(seconds > 0.0 && predicted > 0.0) {
            return;
        }
        let surprise = (seconds / predicted).ln().clamp(-MOST_SURPRISE, MOST_SURPRISE);
        let attention = self.speed * self.position * (rows * context) as f64 / predicted;
        self.speed *= (SPEED_GAIN * surprise).exp();
        self.position *= (SHAPE_GAIN * surprise * attention).exp();
        let after = self.points.partition_point(|p| p.rows < rows);
        // The two points that the table was read from, or the only one.
        for at in [after.checked_sub(1), Some(after)].into_iter().flatten() {
            let Some(point) = self.points.get_mut(at) else {
                continue;
            };
            let distance = point.rows.abs_diff(rows);
            if distance <= point.rows.max(rows) / 4 {
                point.seconds *= (SHAPE_GAIN * surprise * (1.0 - attention)).exp();
            }
        }
        for at in 1..self.points.len() {
            self.points[at].seconds = self.points[at].seconds.max(self.points[at - 1].seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(points: &[(usize, f64)]) -> CostModel {
        let point = |&(rows, seconds): &(usize, f64)| CostPoint { rows, seconds };
        CostModel::new(points.iter().map(point).collect())
    }

    #[test]
    fn between_points_it_is_a_line_and_beyond_it_goes_on() {
        let cost = cost(&[(4, 1.2), (1, 1.0), (8, 2.0), (4, 1.4), (4, 9.0), (2, 0.9)]);
        let close = |rows, expected: f64| {
            let got = cost.seconds(rows, 0);
            assert!((got - expected).abs() < 1e-12, "{rows}: {got}");
        };
        close(1, 1.0);
        close(2, 1.0); // not less than one row
        close(4, 1.2); // the least
        close(3, 1.1);
        close(6, 1.6);
        close(16, 3.6);
        let only = CostModel::new(vec![CostPoint {
            rows: 1,
            seconds: 0.5,
        }]);
        assert_eq!(only.seconds(3, 0), 1.5);
    }

    #[test]
    fn a_table_that_was_measured_on_a_busy_machine_keeps_its_shape() {
        let mut cost = cost(&[(1, 1.0), (4, 1.2)]);
        cost.set_one_row(0.25);
        assert_eq!((cost.seconds(1, 0), cost.seconds(4, 0)), (0.25, 0.3));
    }

    #[test]
    fn context_costs_each_row_the_same() {
        let cost = cost(&[(1, 1.0), (4, 1.2)]);
        let extra = |rows| cost.seconds(rows, 4096) - cost.seconds(rows, 0);
        assert!((extra(1) - 0.25).abs() < 1e-12 && (extra(4) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn it_follows_the_machine_but_not_a_single_pass() {
        let mut cost = cost(&[(1, 1.0), (4, 1.2), (8, 2.0)]);
        cost.observe(4, 0, 100.0);
        assert!(cost.seconds(4, 0) < 1.2 * 1.08, "{}", cost.seconds(4, 0));
        // A machine of half the speed: soon all passes are known to take twice as long, those not seen too.
        for _ in 0..40 {
            cost.observe(1, 0, 2.0);
        }
        assert!((cost.seconds(1, 0) - 2.0).abs() < 0.05);
        assert!(
            (cost.seconds(8, 0) / 4.0 - 1.0).abs() < 0.25,
            "{}",
            cost.seconds(8, 0)
        );
        // Four rows that are dearer than the table says: after a while it says so.
        for _ in 0..300 {
            cost.observe(1, 0, 2.0);
            cost.observe(4, 0, 3.0);
        }
        assert!((cost.seconds(4, 0) / cost.seconds(1, 0) - 1.5).abs() < 0.05);
        // The price of a position is learned where the context is long.
        for _ in 0..400 {
            cost.observe(1, 0, 2.0);
            cost.observe(1, 8192, 4.0);
        }
        assert!(
            (cost.seconds(1, 8192) - 4.0).abs() < 0.3,
            "{}",
            cost.seconds(1, 8192)
        );
        for nonsense in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let before = cost.seconds(2, 0);
            cost.observe(1, 0, nonsense);
            assert!(cost.seconds(2, 0).is_finite() && (cost.seconds(2, 0) / before - 1.0).abs() < 0.1);
        }
    }
}
