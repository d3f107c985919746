//! Pictures of measurements.

use anyhow::anyhow;
use plotters::prelude::*;

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
