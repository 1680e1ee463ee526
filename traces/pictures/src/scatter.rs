//! Forecast against measured, both axes logarithmic, as an SVG document. The same points always give the same bytes.

use crate::canvas::png::load_font;
use crate::palette::{CURVES, Colour, svg_style};
use plotters::backend::SVGBackend;
use plotters::chart::{ChartBuilder, SeriesLabelPosition};
use plotters::drawing::{DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{Circle, PathElement, Rectangle};
use plotters::prelude::{Color, IntoLogRange, RGBColor, WHITE};

/// Points of several sources.
#[derive(Debug, Clone, PartialEq)]
pub struct Scatter {
    /// The title.
    pub title: String,
    /// The measured quantity, with its unit.
    pub quantity: String,
    /// The sources: name, and measured and forecast values, all above zero.
    pub sources: Vec<(String, Vec<(f64, f64)>)>,
}

const SIZE: (u32, u32) = (900, 760);
const TEXT: (&str, i32) = ("sans-serif", 15);

/// Draws the points, the diagonal, and lines at 20 % to both sides of it.
pub fn svg(scatter: &Scatter) -> String {
    load_font();
    let mut text = String::new();
    draw(scatter, &mut text).expect("drawing into memory with a registered font does not fail");
    let start = text.find('>').map_or(0, |end| end + 1);
    text.insert_str(start, &svg_style());
    text
}

type Drawn<'a> =
    Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as plotters::backend::DrawingBackend>::ErrorType>>;

fn draw<'a>(scatter: &Scatter, text: &'a mut String) -> Drawn<'a> {
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let values =
        || scatter.sources.iter().flat_map(|(_, points)| points).flat_map(|(one, other)| [*one, *other]);
    let low = values().fold(f64::INFINITY, f64::min).clamp(1e-9, 1e9) / 1.3;
    let high = values().fold(0.0, f64::max).clamp(1e-9, 1e9) * 1.3;
    let mut chart = ChartBuilder::on(&area)
        .caption(&scatter.title, ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d((low..high).log_scale(), (low..high).log_scale())?;
    chart
        .configure_mesh()
        .x_desc(format!("measured {}", scatter.quantity))
        .y_desc(format!("forecast {}", scatter.quantity))
        .label_style(TEXT)
        .light_line_style(WHITE)
        .draw()?;
    let grey = RGBColor(140, 140, 140);
    for factor in [1.0, 1.2, 1.0 / 1.2] {
        let (first, last) = (low.max(low / factor), high.min(high / factor));
        let line = vec![(first, first * factor), (last, last * factor)];
        chart.draw_series([PathElement::new(line, grey.stroke_width(if factor == 1.0 { 2 } else { 1 }))])?;
    }
    for (index, (name, points)) in scatter.sources.iter().enumerate() {
        let Colour([red, green, blue]) = CURVES[index % CURVES.len()];
        let colour = RGBColor(red, green, blue);
        chart
            .draw_series(points.iter().map(|point| Circle::new(*point, 2, colour.mix(0.7).filled())))?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 8, y + 4)], colour.filled()));
    }
    chart
        .configure_series_labels()
        // A step of minutes is never forecast to take less than a second, so nothing lies there.
        .position(SeriesLabelPosition::LowerRight)
        .label_font(TEXT)
        .background_style(WHITE.mix(0.8))
        .border_style(grey)
        .draw()?;
    area.present()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_is_drawn_and_twice_alike() {
        let scatter = Scatter {
            title: "Step time".into(),
            quantity: "step time in s".into(),
            sources: vec![("a".into(), vec![(1.0, 1.1), (10.0, 9.0)]), ("b".into(), vec![(100.0, 150.0)])],
        };
        let drawn = svg(&scatter);
        assert_eq!(drawn.matches("<circle").count(), 3, "{drawn}");
        assert_eq!(drawn, svg(&scatter));
    }
}
