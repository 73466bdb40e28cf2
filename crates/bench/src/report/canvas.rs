//! A plot's frame: axes, grid and the few shapes plots are made of.
//!
//! plotters draws on whole units. A canvas is therefore drawn [`FINE`] times as large as it is
//! shown, so that curves are smooth; all sizes here are given as shown.

use plotters::{
    chart::ChartBuilder,
    coord::{Shift, types::RangedCoordf64},
    element::{Circle, DashedPathElement, EmptyElement, PathElement, Polygon, Rectangle, Text},
    prelude::{Cartesian2d, Color, DrawingArea, IntoDrawingArea, IntoFont, RGBColor, SVGBackend, ShapeStyle},
    style::text_anchor::{HPos, Pos, VPos},
};

use super::format::{escaped, tick};
use super::palette::{AXIS, Colour, GRID, INK};

/// Units drawn for each unit shown.
const FINE: f64 = 4.0;
/// plotters writes a font's size divided by this into an SVG.
const FONT_CORRECTION: f64 = 1.24;
/// Size of numbers at the axes.
const FONT_SIZE: f64 = 11.0;
/// Space above the plot for the title of the vertical axis.
const TOP: f64 = 24.0;
/// Space at the right, so that the last number of the horizontal axis is not cut.
const RIGHT: f64 = 16.0;
/// Space below for numbers and title of the horizontal axis.
const BOTTOM: f64 = 38.0;

type Area<'a> = DrawingArea<SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Root<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// What drawing returns. Drawing into a string does not fail, but plotters cannot know that.
pub type Drawn = Result<(), Box<dyn std::error::Error>>;

/// An axis: what it measures, from where to where, and where it has numbers.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What it measures.
    pub title: String,
    /// Its first value.
    pub from: f64,
    /// Its last value.
    pub to: f64,
    /// Values that have a number or a name, and that.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// From zero to a little above `most`, with about five round numbers.
    pub fn from_zero(title: &str, most: f64) -> Axis {
        let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
        let to = most * 1.06;
        let ticks = round_numbers(to).into_iter().map(|value| (value, tick(value))).collect();
        Axis { title: title.to_owned(), from: 0.0, to, ticks }
    }

    /// From zero to exactly `to`, with about five round numbers.
    pub fn exactly(title: &str, to: f64) -> Axis {
        let mut axis = Axis::from_zero(title, to);
        axis.to = to.max(f64::MIN_POSITIVE);
        axis.ticks.retain(|(value, _)| *value <= axis.to);
        axis
    }

    /// Names at whole numbers from 0, each in a band of width 1.
    pub fn names(title: &str, names: impl IntoIterator<Item = String>) -> Axis {
        let ticks: Vec<(f64, String)> = names.into_iter().enumerate().map(|(at, name)| (at as f64, name)).collect();
        Axis { title: title.to_owned(), from: -0.5, to: ticks.len().max(1) as f64 - 0.5, ticks }
    }
}

/// Multiples of 1, 2, 2.5 or 5 times a power of ten: about five up to `to`.
fn round_numbers(to: f64) -> Vec<f64> {
    const ABOUT: f64 = 5.0;
    let rough = to / ABOUT;
    let power = 10f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|one| one * power).find(|step| *step >= rough).unwrap_or(rough);
    (0..).map(|count| f64::from(count) * step).take_while(|value| *value <= to).collect()
}

/// A plot's size as shown, and what it is called for those who cannot see it.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The name for those who cannot see it.
    pub name: &'a str,
    /// Width as shown.
    pub width: f64,
    /// Height as shown.
    pub height: f64,
    /// Space at the left for the numbers or names of the vertical axis.
    pub left: f64,
    /// Whether the grid has vertical lines instead of horizontal ones.
    pub sideways: bool,
}

impl Default for Frame<'_> {
    fn default() -> Self {
        Frame { name: "", width: 372.0, height: 224.0, left: 40.0, sideways: false }
    }
}

/// Where a label is drawn, seen from its point.
#[derive(Clone, Copy, Debug)]
pub enum LabelPosition {
    /// Above the point.
    Above,
    /// To the right of the point.
    Right,
}

/// What plots draw on, in the units of the two axes.
pub struct Canvas<'a> {
    area: Area<'a>,
}

/// Draws a plot and returns it as an SVG element.
pub fn plot(frame: Frame<'_>, x: &Axis, y: &Axis, draw: impl FnOnce(&Canvas<'_>) -> Drawn) -> String {
    let mut svg = String::new();
    let drawn = (|| -> Drawn {
        let size = ((frame.width * FINE) as u32, (frame.height * FINE) as u32);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let area = {
            let mut builder = ChartBuilder::on(&root);
            builder.margin_top((TOP * FINE) as i32).margin_right((RIGHT * FINE) as i32);
            builder.x_label_area_size((BOTTOM * FINE) as i32).y_label_area_size((frame.left * FINE) as i32);
            builder.build_cartesian_2d(x.from..x.to, y.from..y.to)?.plotting_area().clone()
        };
        axes(&root, &area, frame, x, y)?;
        draw(&Canvas { area })?;
        root.present()?;
        Ok(())
    })();
    match drawn {
        Ok(()) => svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{}\" ", escaped(frame.name)), 1),
        Err(error) => {
            format!("<p class=\"note\">{}: not drawn: {}</p>", escaped(frame.name), escaped(&error.to_string()))
        }
    }
}

fn rgb(colour: Colour) -> RGBColor {
    RGBColor(colour.0, colour.1, colour.2)
}

fn stroke(colour: Colour, opacity: f64, width: f64) -> ShapeStyle {
    rgb(colour).mix(opacity).stroke_width((width * FINE).round().max(1.0) as u32)
}

fn axes(root: &Root<'_>, area: &Area<'_>, frame: Frame<'_>, x: &Axis, y: &Axis) -> Drawn {
    let font = |colour: Colour, pos: Pos| {
        ("sans-serif", FONT_SIZE * FINE * FONT_CORRECTION).into_font().color(&rgb(colour)).pos(pos)
    };
    let gap = (6.0 * FINE) as i32;
    let (left_end, right_end) = (area.map_coordinate(&(x.from, y.from)), area.map_coordinate(&(x.to, y.from)));
    for (value, text) in &y.ticks {
        if !frame.sideways {
            area.draw(&PathElement::new([(x.from, *value), (x.to, *value)], stroke(GRID, 1.0, 1.0)))?;
        }
        let at = area.map_coordinate(&(x.from, *value));
        let style = font(INK, Pos::new(HPos::Right, VPos::Center));
        root.draw(&Text::new(text.clone(), (at.0 - gap, at.1), style))?;
    }
    for (value, text) in &x.ticks {
        if frame.sideways {
            area.draw(&PathElement::new([(*value, y.from), (*value, y.to)], stroke(GRID, 1.0, 1.0)))?;
        }
        let at = area.map_coordinate(&(*value, y.from));
        let style = font(INK, Pos::new(HPos::Center, VPos::Top));
        root.draw(&Text::new(text.clone(), (at.0, at.1 + gap), style))?;
    }
    let axis = if frame.sideways { [(x.from, y.from), (x.from, y.to)] } else { [(x.from, y.from), (x.to, y.from)] };
    area.draw(&PathElement::new(axis, stroke(AXIS, 1.0, 1.0)))?;
    let title = font(INK, Pos::new(HPos::Left, VPos::Top));
    root.draw(&Text::new(y.title.clone(), ((2.0 * FINE) as i32, (4.0 * FINE) as i32), title))?;
    let title = font(INK, Pos::new(HPos::Center, VPos::Bottom));
    let bottom = ((frame.height - 5.0) * FINE) as i32;
    root.draw(&Text::new(x.title.clone(), ((left_end.0 + right_end.0) / 2, bottom), title))?;
    Ok(())
}

impl Canvas<'_> {
    /// A line through all points.
    pub fn line(&self, points: Vec<(f64, f64)>, colour: Colour, opacity: f64, width: f64) -> Drawn {
        if points.len() > 1 {
            self.area.draw(&PathElement::new(points, stroke(colour, opacity, width)))?;
        }
        Ok(())
    }

    /// A dashed line between two points.
    pub fn dashes(&self, from: (f64, f64), to: (f64, f64), colour: Colour) -> Drawn {
        let length = (4.0 * FINE) as i32;
        let line = DashedPathElement::new([from, to], length, length, stroke(colour, 0.85, 1.2));
        self.area.draw(&line)?;
        Ok(())
    }

    /// The area between a line and zero.
    pub fn below(&self, points: &[(f64, f64)], colour: Colour, opacity: f64) -> Drawn {
        if let (Some(first), Some(last)) = (points.first(), points.last()) {
            let mut outline = points.to_vec();
            outline.extend([(last.0, 0.0), (first.0, 0.0)]);
            self.area.draw(&Polygon::new(outline, rgb(colour).mix(opacity)))?;
        }
        Ok(())
    }

    /// A filled box between two corners.
    pub fn bar(&self, from: (f64, f64), to: (f64, f64), colour: Colour) -> Drawn {
        self.area.draw(&Rectangle::new([from, to], rgb(colour).filled()))?;
        Ok(())
    }

    /// A dot.
    pub fn dot(&self, at: (f64, f64), colour: Colour, opacity: f64, radius: f64) -> Drawn {
        self.area.draw(&Circle::new(at, (radius * FINE) as i32, rgb(colour).mix(opacity).filled()))?;
        Ok(())
    }

    /// A label beside a point.
    pub fn label(&self, at: (f64, f64), position: LabelPosition, text: &str, colour: Colour, size: f64) -> Drawn {
        let gap = (4.0 * FINE) as i32;
        let (offset, pos) = match position {
            LabelPosition::Above => ((0, -gap), Pos::new(HPos::Center, VPos::Bottom)),
            LabelPosition::Right => ((gap, 0), Pos::new(HPos::Left, VPos::Center)),
        };
        let style = ("sans-serif", size * FINE * FONT_CORRECTION).into_font().color(&rgb(colour)).pos(pos);
        self.area.draw(&(EmptyElement::at(at) + Text::new(text.to_owned(), offset, style)))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!(round_numbers(10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(round_numbers(90.0), [0.0, 20.0, 40.0, 60.0, 80.0]);
        assert_eq!(round_numbers(2.0), [0.0, 0.5, 1.0, 1.5, 2.0]);
    }

    #[test]
    fn an_axis_without_data_still_has_a_length() {
        for most in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let axis = Axis::from_zero("", most);
            assert!(axis.to > axis.from && !axis.ticks.is_empty(), "{most}: {axis:?}");
        }
    }
}
