//! A plot of something against time, as an SVG file.

use std::fmt::Write as _;

/// A line of a plot.
pub struct Series<'a> {
    /// Name in the legend.
    pub name: &'a str,
    /// Seconds, and the plotted value.
    pub points: &'a [(f64, f64)],
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;

/// Colours that colour-blind people can distinguish (Okabe and Ito).
const COLOURS: [&str; 6] = [
    "#000000", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00",
];

/// Labels, unit and extent of a plot.
pub struct Axes<'a> {
    /// Title above the plot.
    pub title: &'a str,
    /// Label of the time axis; the unit is added.
    pub across: &'a str,
    /// Label of the vertical axis.
    pub up: &'a str,
    /// The plotted value that is 1 at the axis.
    pub unit: f64,
    /// Time that is shown.
    pub seconds: f64,
    /// Corner of the legend.
    pub legend: Corner,
}

/// Where, on the right, there are the fewest lines.
#[derive(Debug, Clone, Copy)]
pub enum Corner {
    /// At the top.
    Upper,
    /// At the bottom.
    Lower,
}

/// Draws the points of the shown time.
pub fn plot(axes: &Axes<'_>, series: &[Series<'_>]) -> String {
    let within = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
        let shown = points.iter().copied();
        shown.take_while(|(at, _)| *at <= axes.seconds).collect()
    };
    let shown: Vec<_> = series.iter().map(|one| within(one.points)).collect();
    let most = shown
        .iter()
        .flatten()
        .map(|(_, value)| *value)
        .fold(axes.unit, f64::max);
    let frame = Frame { axes, most };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"16\">{}</text>\n",
        escaped(axes.title)
    );
    frame.axes(&mut svg);
    for (index, (one, points)) in series.iter().zip(&shown).enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        frame.line(&mut svg, points, colour);
        legend(&mut svg, axes.legend, index, one.name, colour);
    }
    svg += "</svg>\n";
    svg
}

/// The part of the plane that is shown.
struct Frame<'a> {
    axes: &'a Axes<'a>,
    most: f64,
}

impl Frame<'_> {
    fn x(&self, at: f64) -> f64 {
        LEFT + at / self.axes.seconds * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - value / self.most * (HEIGHT - TOP - BOTTOM)
    }

    // Writing to a string cannot fail, here and below.
    fn axes(&self, svg: &mut String) {
        let (left, right) = (self.x(0.0), self.x(self.axes.seconds));
        let (bottom, top) = (self.y(0.0), self.y(self.most));
        let _ = writeln!(
            svg,
            "<path d=\"M{left:.1} {top:.1}V{bottom:.1}H{right:.1}\" fill=\"none\" stroke=\"#444\"/>"
        );
        // Milliseconds where that gives readable numbers.
        let (scale, unit) = if self.axes.seconds < 1.0 {
            (1e3, "ms")
        } else {
            (1.0, "s")
        };
        for at in ticks(self.axes.seconds * scale) {
            let x = self.x(at / scale);
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{at}</text>",
                bottom + 18.0
            );
        }
        for value in ticks(self.most / self.axes.unit) {
            let y = self.y(value * self.axes.unit);
            let _ = writeln!(
                svg,
                "<path d=\"M{left:.1} {y:.1}H{right:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
                left - 6.0,
                y + 4.0
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{} ({unit})</text>\n\
             <text transform=\"translate(18 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(left, right),
            HEIGHT - 10.0,
            escaped(self.axes.across),
            f64::midpoint(top, bottom),
            escaped(self.axes.up)
        );
    }

    /// A point for each acknowledgement, and a thin line through the points.
    fn line(&self, svg: &mut String, points: &[(f64, f64)], colour: &str) {
        let mut path = String::new();
        let mut dots = String::new();
        for (at, bytes) in points {
            let (x, y) = (self.x(*at), self.y(*bytes));
            let _ = write!(path, "{x:.1},{y:.1} ");
            let _ = write!(dots, "M{x:.1} {y:.1}h0");
        }
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"0.8\"/>\n\
             <path d=\"{dots}\" stroke=\"{colour}\" stroke-width=\"3\" stroke-linecap=\"round\"/>",
            path.trim_end()
        );
    }
}

fn legend(svg: &mut String, corner: Corner, index: usize, name: &str, colour: &str) {
    let lines = 18.0 * f64::from(u32::try_from(index).unwrap_or(0));
    let y = match corner {
        Corner::Upper => TOP + 14.0 + lines,
        Corner::Lower => HEIGHT - BOTTOM - 14.0 - lines,
    };
    let x = WIDTH - RIGHT - 150.0;
    let _ = writeln!(
        svg,
        "<path d=\"M{x:.1} {:.1}h24\" stroke=\"{colour}\" stroke-width=\"3\"/>\
         <text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
        y - 4.0,
        x + 30.0,
        escaped(name)
    );
}

/// About five round numbers from 0 up to `most`.
fn ticks(most: f64) -> Vec<f64> {
    let rough = most / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    let step = steps.into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let ticks = (0..=10u8).map(|number| (f64::from(number) * step * 1e6).round() / 1e6);
    ticks.take_while(|tick| *tick <= most).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(1024.0), [0.0, 500.0, 1000.0]);
        assert_eq!(ticks(200.0), [0.0, 50.0, 100.0, 150.0, 200.0]);
        assert_eq!(ticks(0.5), [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]);
    }

    #[test]
    fn plot_shows_points_within_range() {
        let points = [(0.0, 0.0), (0.1, 51_200.0), (0.3, 102_400.0)];
        let series = [Series {
            name: "Lazy <1>",
            points: &points,
        }];
        let svg = plot(
            &Axes {
                title: "a & b",
                across: "time",
                up: "bytes",
                unit: 1024.0,
                seconds: 0.2,
                legend: Corner::Upper,
            },
            &series,
        );
        assert!(svg.contains("a &amp; b") && svg.contains("Lazy &lt;1>"));
        // From the lower left to the middle of the top: the third point is later.
        assert!(svg.contains("points=\"70.0,410.0 405.0,40.0\""), "{svg}");
    }
}
