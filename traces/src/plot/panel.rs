//! One of the two coordinate systems of a plot.

use super::axis::Axis;
use super::{Painted, TEXT_SIZE};
use plotters::backend::DrawingBackend;
use plotters::coord::Shift;
use plotters::drawing::DrawingArea;
use plotters::element::{PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontTransform, IntoFont, IntoTextStyle, RGBColor};

const TEXT: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);
const EDGE: RGBColor = RGBColor(120, 120, 120);

/// Where a coordinate system is, before scaling, and what it shows.
pub(super) struct Panel<'a> {
    pub scale: i32,
    /// Left and right edge.
    pub x: (i32, i32),
    /// Upper and lower edge.
    pub y: (i32, i32),
    pub size: &'a Axis,
    pub value: &'a Axis,
}

impl Panel<'_> {
    /// Grid, edge, ticks and names of the axes.
    pub fn frame<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>, name: &str) -> Painted<B> {
        let ((left, right), (top, bottom), scale) = (self.x, self.y, self.scale);
        let (upper, lower) = ((left * scale, top * scale), (right * scale, bottom * scale));
        let line = |from: (i32, i32), to: (i32, i32)| {
            PathElement::new(vec![from, to], GRID.stroke_width(scale as u32))
        };
        for tick in &self.size.ticks {
            let x = self.across(*tick);
            area.draw(&line((x, upper.1), (x, lower.1)))?;
            let place = (x / scale, bottom + 8);
            label(area, scale, &self.size.name(*tick), place, TEXT_SIZE, (HPos::Center, VPos::Top))?;
        }
        for tick in &self.value.ticks {
            let y = self.up(*tick);
            area.draw(&line((upper.0, y), (lower.0, y)))?;
            let place = (left - 8, y / scale);
            label(area, scale, &self.value.name(*tick), place, TEXT_SIZE, (HPos::Right, VPos::Center))?;
        }
        area.draw(&Rectangle::new([upper, lower], EDGE.stroke_width(scale as u32)))?;
        let place = ((left + right) / 2, bottom + 38);
        label(area, scale, "size", place, TEXT_SIZE, (HPos::Center, VPos::Top))?;
        let name = format!("{name}{}", self.value.unit());
        label(area, scale, &name, (left, top - 10), TEXT_SIZE, (HPos::Left, VPos::Bottom))
    }

    /// Where a value of a size is in the picture.
    pub fn place(&self, size: f64, value: f64) -> (i32, i32) {
        (self.across(size), self.up(value))
    }

    fn across(&self, size: f64) -> i32 {
        between(self.x, self.size.place(size), self.scale)
    }

    fn up(&self, value: f64) -> i32 {
        between((self.y.1, self.y.0), self.value.place(value), self.scale)
    }
}

fn between((from, to): (i32, i32), part: f64, scale: i32) -> i32 {
    (f64::from(scale) * (f64::from(from) + part * f64::from(to - from))).round() as i32
}

/// Writes a text at a place that is not yet scaled.
pub(super) fn label<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    scale: i32,
    text: &str,
    place: (i32, i32),
    size: i32,
    (across, up): (HPos, VPos),
) -> Painted<B> {
    let font = ("sans-serif", size * scale).into_font().transform(FontTransform::None).color(&TEXT);
    let style = font.into_text_style(area).pos(Pos::new(across, up));
    area.draw(&Text::new(text.to_string(), (place.0 * scale, place.1 * scale), style))
}
