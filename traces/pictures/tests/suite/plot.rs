//! Plots of collectives by size.

use trainwright_pictures::plot::{Curve, Mark, SweepPlot, png as draw, svg};
use trainwright_spec::units::{Bytes, Seconds};

/// A forecast of 1 KiB to 1 MiB in 10 to 1000 µs, and two measurements.
fn plot() -> SweepPlot {
    let points = |times: &[(f64, f64)]| {
        times.iter().map(|(bytes, time)| (Bytes::new(*bytes), Seconds::new(time * 1e-6))).collect()
    };
    let curve = |name: &str, mark: Mark, times: &[(f64, f64)]| Curve {
        name: name.into(),
        mark,
        points: points(times),
    };
    SweepPlot {
        title: "all-reduce over 8 GPUs <of one node>".into(),
        bus_factor: 1.75,
        curves: vec![
            curve("forecast", Mark::Line, &[(1024.0, 10.0), (32768.0, 100.0), (1048576.0, 1000.0)]),
            curve("measured", Mark::Points, &[(1024.0, 12.0), (1048576.0, 900.0)]),
        ],
    }
}

/// The points of the forecast's curves, without its horizontal sample in the legend.
fn forecast_curves(text: &str) -> Vec<Vec<(f64, f64)>> {
    let number = |text: &str| -> f64 { text.parse().unwrap() };
    let points = |line: &str| {
        let points = line.split('"').nth(1).unwrap().split(['M', 'L']).skip(1);
        points.map(|point| point.split_once(' ').unwrap()).map(|(x, y)| (number(x), number(y))).collect()
    };
    text.lines()
        .filter(|line| {
            line.starts_with("<path") && line.contains("stroke=\"#005aaa\"") && !line.contains('H')
        })
        .map(points)
        .collect()
}

#[test]
fn the_picture_has_its_words_and_marks() {
    let text = svg(&plot());
    for word in
        ["over 8 GPUs &lt;of one node&gt;", "bus bandwidth (GB/s)", "time", "size", "forecast", "measured"]
    {
        assert!(text.contains(&format!("{word}</text>")), "no `{word}` in\n{text}");
    }
    for tick in ["1 KiB", "64 KiB", "1 MiB", "10 µs", "100 µs", "1 ms", "0.2", "0.5", "1", "2"] {
        assert!(text.contains(&format!(">{tick}</text>")), "no tick `{tick}` in\n{text}");
    }
    // Two points in each panel and one in the legend; one line each besides the grid.
    assert_eq!(text.matches("<circle").count(), 2 * 2 + 1);
    let lines = text.lines().filter(|line| line.starts_with("<path"));
    assert_eq!(lines.filter(|line| line.contains("stroke=\"#005aaa\"")).count(), 3);
    assert_eq!(svg(&plot()), text);
}

/// A 10th of the way up in the logarithm is a 10th of the way up in the picture.
#[test]
fn both_axes_are_logarithmic() {
    let text = svg(&plot());
    // 32 KiB is half of the way from 1 KiB to 1 MiB, and 100 µs from 10 to 1000 µs.
    let time = &forecast_curves(&text)[1];
    assert_eq!(time.len(), 3, "{time:?}");
    assert!((time[1].0 - (time[0].0 + time[2].0) / 2.0).abs() <= 0.02, "{time:?}");
    assert!((time[1].1 - (time[0].1 + time[2].1) / 2.0).abs() <= 0.02, "{time:?}");
    assert!(time[2].0 > time[0].0 && time[2].1 < time[0].1, "{time:?}");
}

#[test]
fn the_png_is_the_same_picture() {
    let file = draw(&plot());
    let mut reader = png::Decoder::new(std::io::Cursor::new(&file)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    let size = format!("width=\"{}\" height=\"{}\"", info.width, info.height);
    assert!(svg(&plot()).contains(&size), "{size}");
    let has = |colour: [u8; 3]| pixels.chunks_exact(3).any(|pixel| pixel == colour);
    assert!(has([255, 255, 255]) && has([0, 90, 170]) && has([217, 95, 2]));
    assert_eq!(draw(&plot()), file);
}

#[test]
fn a_single_size_and_no_curve_are_drawn_too() {
    let mut one = plot();
    one.curves.truncate(1);
    one.curves[0].points.truncate(1);
    assert!(svg(&one).contains(">1 KiB</text>"));
    one.curves.clear();
    assert!(svg(&one).contains("bus bandwidth"));
}

#[test]
fn a_long_legend_gets_more_lines() {
    let mut long = plot();
    for index in 0..9 {
        let name = format!("measured on a machine with a long name, {index}");
        long.curves.push(Curve { name, mark: Mark::Points, points: Vec::new() });
    }
    let height = |text: String| -> u32 {
        text.split("height=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
    };
    assert!(height(svg(&long)) > height(svg(&plot())) + 50);
}
