//! One of the two coordinate systems of a plot.

use super::TEXT_SIZE;
use super::axis::Axis;
use super::canvas::{Canvas, Painted};
use plotters::backend::DrawingBackend;
use plotters::style::text_anchor::{HPos, VPos};

/// Where a coordinate system is in the layout, and what it shows.
pub(super) struct Panel<'a, B: DrawingBackend> {
    pub canvas: &'a Canvas<B>,
    /// Left and right edge.
    pub x: (i32, i32),
    /// Upper and lower edge.
    pub y: (i32, i32),
    pub size: &'a Axis,
    pub value: &'a Axis,
}

impl<B: DrawingBackend> Panel<'_, B> {
    /// Grid, edge, ticks and names of the axes.
    pub fn frame(&self, across: &str, name: &str) -> Painted<B> {
        let (canvas, (left, right), (top, bottom)) = (self.canvas, self.x, self.y);
        let (upper, lower) = (canvas.place(left, top), canvas.place(right, bottom));
        for tick in &self.size.ticks {
            let x = self.across(*tick);
            canvas.grid((x, upper.1), (x, lower.1))?;
            let place = (x / canvas.scale, bottom + 8);
            canvas.text(&self.size.name(*tick), place, TEXT_SIZE, (HPos::Center, VPos::Top))?;
        }
        for tick in &self.value.ticks {
            let y = self.up(*tick);
            canvas.grid((upper.0, y), (lower.0, y))?;
            let place = (left - 8, y / canvas.scale);
            canvas.text(&self.value.name(*tick), place, TEXT_SIZE, (HPos::Right, VPos::Center))?;
        }
        canvas.edge(upper, lower)?;
        canvas.text(across, ((left + right) / 2, bottom + 38), TEXT_SIZE, (HPos::Center, VPos::Top))?;
        let name = format!("{name}{}", self.value.unit());
        canvas.text(&name, (left, top - 10), TEXT_SIZE, (HPos::Left, VPos::Bottom))
    }

    /// Where a value of a size is in the picture.
    pub fn place(&self, size: f64, value: f64) -> (i32, i32) {
        (self.across(size), self.up(value))
    }

    fn across(&self, size: f64) -> i32 {
        self.between(self.x, self.size.place(size))
    }

    fn up(&self, value: f64) -> i32 {
        self.between((self.y.1, self.y.0), self.value.place(value))
    }

    fn between(&self, (from, to): (i32, i32), part: f64) -> i32 {
        (f64::from(self.canvas.scale) * (f64::from(from) + part * f64::from(to - from))).round() as i32
    }
}
