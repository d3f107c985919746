//! Pictures of measurements.

use anyhow::anyhow;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::cost::Report;

const SIZE: (u32, u32) = (900, 560);
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
];
const GREY: RGBColor = RGBColor(120, 120, 120);

/// The time of a pass over n rows, with its spread and its floor; one line a context.
pub fn cost(report: &Report) -> anyhow::Result<String> {
    let mut svg = String::new();
    draw(report, &mut svg).map_err(|error| anyhow!("cannot draw the plot: {error}"))?;
    Ok(svg)
}

fn draw(report: &Report, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let most = report.rows.iter().map(|p| p.n).max().unwrap_or(1);
    let highest = report.rows.iter().map(|p| p.max_ms).fold(0.0, f64::max);
    let name = std::path::Path::new(&report.model).file_name();
    let name = name.map_or_else(
        || report.model.clone(),
        |name| name.to_string_lossy().into_owned(),
    );
    let mut chart = ChartBuilder::on(&root)
        .caption(
            format!("{name}, {} threads: a pass over n rows", report.threads),
            ("sans-serif", 20),
        )
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.5..most as f64 + 0.5, 0.0..1.08 * highest)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .x_labels(most.min(17))
        .x_label_formatter(&|x| format!("{x:.0}"))
        .x_desc("rows of the pass")
        .y_desc("milliseconds")
        .label_style(("sans-serif", 14))
        .draw()?;

    let contexts = report.rows.chunk_by(|a, b| a.context == b.context);
    for (points, colour) in contexts.zip(COLOURS.into_iter().cycle()) {
        let context = points[0].context;
        let line = points.iter().map(|p| (p.n as f64, p.median_ms));
        chart
            .draw_series(LineSeries::new(line.clone(), colour.stroke_width(2)))?
            .label(format!("measured after {context} positions"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(2)));
        chart.draw_series(line.map(|at| Circle::new(at, 3, colour.filled())))?;
        chart.draw_series(
            points
                .iter()
                .map(|p| PathElement::new([(p.n as f64, p.min_ms), (p.n as f64, p.max_ms)], colour.mix(0.5))),
        )?;
        chart
            .draw_series(DashedLineSeries::new(
                points.iter().map(|p| (p.n as f64, p.floor_ms)),
                5,
                4,
                colour.stroke_width(1),
            ))?
            .label(format!("its floor after {context}"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], colour.mix(0.4)));
        if let Some(one) = points
            .iter()
            .find(|p| p.n == 1)
            .filter(|_| context == report.rows[0].context)
        {
            let proportional = [0.5, highest / one.median_ms].map(|n| (n, n * one.median_ms));
            chart
                .draw_series(DashedLineSeries::new(proportional, 1, 4, GREY.stroke_width(1)))?
                .label("n times one row")
                .legend(|(x, y)| PathElement::new([(x, y), (x + 22, y)], GREY));
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .label_font(("sans-serif", 14))
        .draw()?;
    root.present()?;
    Ok(())
}

/// Tokens per second of each prompt, plain and speculative.
pub fn rates(rates: &[(&str, f64, f64)]) -> anyhow::Result<String> {
    let labels: Vec<&str> = rates.iter().map(|r| r.0).collect();
    let plain = rates.iter().map(|r| r.1).collect();
    let drafted = rates.iter().map(|r| r.2).collect();
    let series = [
        Series {
            name: "plain",
            colour: GREY,
            values: plain,
        },
        Series {
            name: "speculative",
            colour: COLOURS[0],
            values: drafted,
        },
    ];
    bars(&labels, &series, false, "tokens per second")
}

/// Where the seconds of each prompt went: prompt, drafting, target, the rest.
pub fn times(times: &[(&str, [f64; 4])]) -> anyhow::Result<String> {
    let labels: Vec<&str> = times.iter().map(|t| t.0).collect();
    let names = ["reading the prompt", "drafting", "target passes", "the rest"];
    let colours = [COLOURS[4], COLOURS[1], COLOURS[0], GREY];
    let series: Vec<Series> = (0..4)
        .map(|at| Series {
            name: names[at],
            colour: colours[at],
            values: times.iter().map(|t| t.1[at]).collect(),
        })
        .collect();
    bars(&labels, &series, true, "seconds")
}

/// How many draft tokens were accepted at each depth.
pub fn counts(counts: &[usize]) -> anyhow::Result<String> {
    let labels: Vec<String> = (1..=counts.len()).map(|depth| depth.to_string()).collect();
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    let values = counts.iter().map(|&count| count as f64).collect();
    let series = [Series {
        name: "accepted",
        colour: COLOURS[2],
        values,
    }];
    bars(&labels, &series, false, "draft tokens")
}

/// Milliseconds of a pass by its rows.
pub fn passes(points: &[(usize, f64)]) -> anyhow::Result<String> {
    let mut svg = String::new();
    let draw = |svg: &mut String| -> Result<(), Box<dyn std::error::Error>> {
        let root = SVGBackend::with_string(svg, WIDE).into_drawing_area();
        root.fill(&WHITE)?;
        let most = points.iter().map(|p| p.0).max().unwrap_or(1) as f64;
        let highest = points.iter().map(|p| p.1).fold(0.0, f64::max);
        let mut chart = ChartBuilder::on(&root)
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(0.5..most + 0.5, 0.0..1.08 * highest)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .x_label_formatter(&|x| format!("{x:.0}"))
            .x_desc("rows of the pass")
            .y_desc("milliseconds")
            .label_style(("sans-serif", 14))
            .draw()?;
        let line = points.iter().map(|&(rows, ms)| (rows as f64, ms));
        chart.draw_series(LineSeries::new(line.clone(), COLOURS[0].stroke_width(2)))?;
        chart.draw_series(line.map(|at| Circle::new(at, 3, COLOURS[0].filled())))?;
        root.present()?;
        Ok(())
    };
    draw(&mut svg).map_err(|error| anyhow!("cannot draw the plot: {error}"))?;
    Ok(svg)
}

const WIDE: (u32, u32) = (900, 340);

/// One colour of bars: a value for each label.
struct Series {
    name: &'static str,
    colour: RGBColor,
    values: Vec<f64>,
}

/// Bars for each label, beside each other or stacked.
fn bars(labels: &[&str], series: &[Series], stacked: bool, unit: &str) -> anyhow::Result<String> {
    let mut svg = String::new();
    draw_bars(labels, series, stacked, unit, &mut svg)
        .map_err(|error| anyhow!("cannot draw the plot: {error}"))?;
    Ok(svg)
}

fn draw_bars(
    labels: &[&str],
    series: &[Series],
    stacked: bool,
    unit: &str,
    svg: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, WIDE).into_drawing_area();
    root.fill(&WHITE)?;
    let column = |at: usize| series.iter().map(move |s| s.values[at]);
    let height = |at: usize| match stacked {
        true => column(at).sum::<f64>(),
        false => column(at).fold(0.0, f64::max),
    };
    let highest = (0..labels.len()).map(height).fold(0.0, f64::max).max(1e-9);
    let longest = labels
        .iter()
        .map(|label| label.chars().count())
        .max()
        .unwrap_or(1);
    let narrow = labels.len() * longest > 90;
    // Room for the names above the bars.
    let headroom = if series.len() > 1 {
        1.0 + 0.09 * series.len() as f64
    } else {
        1.1
    };
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .x_label_area_size(if narrow { 16 + 7 * longest as u32 } else { 32 })
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..labels.len().max(1) as f64, 0.0..headroom * highest)?;
    let direction = if narrow {
        FontTransform::Rotate90
    } else {
        FontTransform::None
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .x_labels(0)
        .y_desc(unit)
        .label_style(("sans-serif", 14))
        .draw()?;
    for (at, label) in labels.iter().enumerate() {
        let position = chart.backend_coord(&(at as f64 + 0.5, 0.0));
        let anchor = match narrow {
            true => Pos::new(HPos::Left, VPos::Center),
            false => Pos::new(HPos::Center, VPos::Top),
        };
        let style = TextStyle::from(("sans-serif", 12).into_font().transform(direction.clone())).pos(anchor);
        root.draw(&Text::new(
            (*label).to_owned(),
            (position.0, position.1 + 8),
            style,
        ))?;
    }
    let width = if stacked { 0.8 } else { 0.8 / series.len() as f64 };
    let mut floor = vec![0.0; labels.len()];
    for (of, Series { name, colour, values }) in series.iter().enumerate() {
        let (colour, floors) = (*colour, floor.clone());
        let bars = values.iter().enumerate().map(|(at, &value)| {
            let left = at as f64 + 0.1 + if stacked { 0.0 } else { of as f64 * width };
            let from = if stacked { floors[at] } else { 0.0 };
            Rectangle::new([(left, from), (left + width, from + value)], colour.filled())
        });
        chart
            .draw_series(bars)?
            .label(*name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
        floor
            .iter_mut()
            .zip(values)
            .for_each(|(floor, value)| *floor += value);
    }
    if series.len() > 1 {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.85))
            .label_font(("sans-serif", 14))
            .draw()?;
    }
    root.present()?;
    Ok(())
}
