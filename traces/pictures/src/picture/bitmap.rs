//! The elements of a picture as a PNG file.

use super::canvas::{Anchor, Colour, DASH, Dash, Element, Path, STROKE, Text};
use crate::plot::{SAMPLES, load_font, smoothed};
use plotters::backend::BitMapBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{PathElement, Polygon, Rectangle};
use plotters::prelude::DrawingBackend;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, IntoTextStyle, RGBColor, WHITE};

type Area<'a> = DrawingArea<BitMapBackend<'a>, Shift>;
type Painted<'a> = Result<(), DrawingAreaErrorKind<<BitMapBackend<'a> as DrawingBackend>::ErrorType>>;

/// From a baseline up to the middle of a capital letter, in ems.
const MIDDLE: f64 = 0.36;
/// By how much less the font's box lies above its middle than below, in ems: most letters have nothing there.
const SINK: f64 = 1.0 / 7.0;

/// Draws the elements on white.
pub fn png(elements: &[Element], width: f64, height: f64) -> Vec<u8> {
    load_font();
    let size = (pixels(width.ceil()) as u32, pixels(height.ceil()) as u32);
    smoothed(size, |backend| {
        let area = backend.into_drawing_area();
        let painted = area.fill(&WHITE).and_then(|()| {
            elements.iter().try_for_each(|element| paint(&area, element))?;
            area.present()
        });
        painted.expect("memory takes all that is drawn, in a font that is there");
    })
}

fn paint<'a>(area: &Area<'a>, element: &Element) -> Painted<'a> {
    match element {
        Element::Rect([x, y, width, height], fill) => {
            let corners = [place(*x, *y), inner(x + width, y + height)];
            area.draw(&Rectangle::new(corners, rgb(*fill).filled()))
        }
        Element::Path(path) => lines(area, path),
        Element::Text(text) => label(area, text),
        Element::Open(_) | Element::Close => Ok(()),
    }
}

fn lines<'a>(area: &Area<'a>, path: &Path) -> Painted<'a> {
    let stroke = rgb(path.stroke).stroke_width(pixels(STROKE) as u32);
    for line in &path.lines {
        let places: Vec<(i32, i32)> = line.iter().map(|(x, y)| place(*x, *y)).collect();
        if let Some(fill) = path.fill {
            area.draw(&Polygon::new(places.clone(), rgb(fill).filled()))?;
        }
        match (path.dash, places.as_slice()) {
            (Dash::Dashed, [(left, y), (right, _)]) => {
                let dash = pixels(DASH);
                for start in (*left..*right).step_by(2 * dash as usize) {
                    let ends = vec![(start, *y), ((start + dash).min(*right), *y)];
                    area.draw(&PathElement::new(ends, stroke))?;
                }
            }
            _ => area.draw(&PathElement::new(places, stroke))?,
        }
    }
    Ok(())
}

fn label<'a>(area: &Area<'a>, text: &Text) -> Painted<'a> {
    let across = match text.anchor {
        Anchor::Start => HPos::Left,
        Anchor::Middle => HPos::Center,
        Anchor::End => HPos::Right,
    };
    let size = text.size.pixels();
    let style = ("sans-serif", pixels(size)).into_font().color(&rgb(text.colour)).into_text_style(area);
    let middle = text.y + size * (SINK - MIDDLE);
    area.draw_text(&text.text, &style.pos(Pos::new(across, VPos::Center)), place(text.x, middle))
}

/// A length in the pixels that are averaged later.
fn pixels(length: f64) -> i32 {
    (length * f64::from(SAMPLES)).round() as i32
}

fn place(x: f64, y: f64) -> (i32, i32) {
    (pixels(x), pixels(y))
}

/// The last pixel before a corner, as rectangles include their corners.
fn inner(x: f64, y: f64) -> (i32, i32) {
    (pixels(x) - 1, pixels(y) - 1)
}

fn rgb(Colour([red, green, blue]): Colour) -> RGBColor {
    RGBColor(red, green, blue)
}
