use crate::draft::{Draft, ONE_F_ONE_B, from_drawing};
use trainwright_pictures::picture::{png as bitmap, svg, svg_pair};
use trainwright_spec::program::{Axis, MemoryKind, Pass, Stream};
use trainwright_timeline::timeline::{Activity, Timeline};

const FORWARD: &str = "#56b4e9";
const RECOMPUTE: &str = "#f0e442";
const BACKWARD: &str = "#009e73";
const WEIGHT_GRADIENT: &str = "#e69f00";
const UPDATE: &str = "#cc79a7";
const TENSOR: &str = "#d55e00";
const PIPELINE: &str = "#4617c8";
const IDLE: &str = "#ececec";

/// The value of an attribute of a tag.
fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = tag.split_once(&format!(" {name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

/// The rectangles of the first row: start and end in hundredths of the step, bottom and top in hundredths of the
/// row's height, and the colour.
fn first_row(timeline: &Timeline) -> Vec<(i64, i64, i64, i64, String)> {
    let picture = svg(timeline, "title");
    let rects: Vec<([f64; 4], &str)> = picture
        .lines()
        .filter(|line| line.starts_with("<rect x="))
        .map(|line| {
            let side = |name| attribute(line, name).unwrap().parse().unwrap();
            (["x", "y", "width", "height"].map(side), attribute(line, "fill").unwrap())
        })
        .collect();
    let ([left, top, width, height], _) =
        rects.iter().find(|([_, _, width, _], fill)| *fill == IDLE && *width > 100.0).unwrap();
    let hundredths = |part: f64, full: f64| (100.0 * part / full).round() as i64;
    rects
        .iter()
        .filter(|([_, y, ..], fill)| *y >= *top && *y < top + height && *fill != IDLE)
        .map(|&([x, y, w, h], fill)| {
            let bottom = top + height - y - h;
            let time = (hundredths(x - left, *width), hundredths(x + w - left, *width));
            (time.0, time.1, hundredths(bottom, *height), hundredths(bottom + h, *height), fill.to_string())
        })
        .collect()
}

#[track_caller]
fn check(timeline: &Timeline, expected: &[(i64, i64, i64, i64, &str)]) {
    let drawn = first_row(timeline);
    let drawn: Vec<_> = drawn.iter().map(|(a, b, c, d, fill)| (*a, *b, *c, *d, fill.as_str())).collect();
    assert_eq!(drawn, expected);
}

#[test]
fn an_action_is_a_box_from_its_first_to_its_last_kernel() {
    check(
        &from_drawing("rank 0 | F0 .. B0 == ##", 1000),
        &[(0, 20, 0, 100, FORWARD), (40, 80, 0, 100, BACKWARD), (80, 100, 0, 100, UPDATE)],
    );
}

#[test]
fn halves_of_backward_have_different_colours() {
    check(
        &from_drawing("rank 0 | 0F0 0I0 0W0 0B1 ===", 1000),
        &[
            (0, 20, 0, 100, FORWARD),
            (20, 40, 0, 100, BACKWARD),
            (40, 60, 0, 100, WEIGHT_GRADIENT),
            (60, 100, 0, 100, BACKWARD),
        ],
    );
}

#[test]
fn heights_in_a_box_are_shares_of_its_time() {
    // The backward of 100: forward again 0..20 and 50..60, communication 20..30 and 60..70, waiting 90..95.
    // Stacked: recompute 30, backward 20 + 20 + 5 = 45, exposed 20; the rest of 5 is idle.
    let mut draft = Draft::new(&[(0, 1, 0)]);
    let over_tensor = Activity::Communication(Axis::Tensor);
    draft.call(0, "0B0");
    draft.span_of(Pass::Recompute, Stream::Compute, Activity::Compute, 0, 20);
    draft.span(Stream::Layer, over_tensor, 20, 30).compute(30, 50);
    draft.span_of(Pass::Recompute, Stream::Compute, Activity::Compute, 50, 60);
    draft.span(Stream::Layer, over_tensor, 60, 70).compute(70, 90);
    draft.span(Stream::Compute, Activity::Wait, 90, 95).compute(95, 100);
    check(
        &draft.finish(),
        &[(0, 100, 0, 30, RECOMPUTE), (0, 100, 30, 75, BACKWARD), (0, 100, 75, 95, TENSOR)],
    );
}

#[test]
fn communication_between_boxes_is_drawn_when_it_happens() {
    // Activities the forward 0..50 it is overlapped; from 50 to 60 it is exposed; the wait before it never shows.
    let mut draft = Draft::new(&[(0, 1, 0)]);
    draft.call(0, "0F0").compute(0, 50);
    draft.span(Stream::Receive, Activity::Wait, 0, 40);
    draft.span(Stream::Receive, Activity::Communication(Axis::Pipeline), 40, 60);
    draft.call(0, "0F1").compute(75, 100);
    check(
        &draft.finish(),
        &[(0, 50, 0, 100, FORWARD), (50, 60, 0, 100, PIPELINE), (75, 100, 0, 100, FORWARD)],
    );
}

#[test]
fn a_later_stage_of_a_rank_is_lighter() {
    // The second of two stages moves 0.6 / 2 of the way to white: 0x56 = 86 becomes 86 + 0.3 · 169 = 137 = 0x89,
    // 0xb4 = 180 becomes 203 = 0xcb (202.5 rounds up), 0xe9 = 233 becomes 240 = 0xf0 (239.6).
    check(&from_drawing("rank 0 | 0F0 2F0", 1000), &[(0, 50, 0, 100, FORWARD), (50, 100, 0, 100, "#89cbf0")]);
}

/// Twin of an XML parser, for what it needs here: every tag closes in order and no text or value holds a `<`.
fn assert_well_formed(document: &str) {
    let mut open = Vec::new();
    for tag in document.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').unwrap();
        assert!(!text.contains('>'), "{text}");
        for entity in text.split('&').skip(1) {
            assert!(["amp;", "lt;", "gt;", "quot;"].iter().any(|known| entity.starts_with(known)), "{text}");
        }
        let name = tag.split_whitespace().next().unwrap();
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if tag.ends_with('/') => {}
            None => open.push(name),
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
    }
    assert!(open.is_empty());
}

#[test]
fn a_picture_is_one_document_with_title_axis_legend_and_labels() {
    let picture = svg(&from_drawing(ONE_F_ONE_B, 1_000_000), "1f1b: <3 stages> & \"4\"\nmicrobatches");
    assert_well_formed(&picture);
    let texts: Vec<&str> = picture
        .lines()
        .filter(|line| line.starts_with("<text"))
        .map(|line| line.split_once('>').unwrap().1.trim_end_matches("</text>"))
        .collect();
    let numbers = [
        ["0", "1", "2", "0", "3", "1", "2", "3"], // F0 F1 F2 B0 F3 B1 B2 B3
        ["0", "1", "0", "2", "1", "3", "2", "3"], // F0 F1 B0 F2 B1 F3 B2 B3
        ["0", "0", "1", "1", "2", "2", "3", "3"], // F0 B0 F1 B1 F2 B2 F3 B3
    ];
    let mut expected = vec![
        "1f1b: &lt;3 stages&gt; &amp; &quot;4&quot; microbatches",
        "forward",
        "backward",
        "idle",
        "numbers are microbatches; heights in a box are shares of its time",
        "step time 18.0 µs",
        "rank 0",
        "rank 1",
        "rank 2",
    ];
    expected.extend(numbers.iter().flatten());
    // 18 µs in steps of 2 are 9 ticks after the first.
    expected.extend(["0", "2", "4", "6", "8", "10", "12", "14", "16", "18", "time (µs)"]);
    assert_eq!(texts, expected);
    assert!(picture.contains("<g><title>rank 1: 1B2, 11.0 µs to 13.0 µs, takes 2.00 µs</title>"));
}

/// A step that takes half as long as the other ends in the middle of the common axis.
#[test]
fn two_timelines_have_one_axis() {
    let [short, long] = [500, 1000].map(|length| {
        let mut draft = Draft::new(&[(0, 1, 0)]);
        draft.call(0, "0F0").compute(0, length);
        draft.finish()
    });
    let [one, other] = svg_pair([(&short, "one"), (&long, "other")]);
    let width = |picture: &str| -> f64 {
        let box_of = |line: &&str| line.starts_with("<rect x=") && line.contains(IDLE);
        let widths =
            picture.lines().filter(box_of).map(|line| attribute(line, "width").unwrap().parse().unwrap());
        widths.fold(0.0, f64::max)
    };
    assert!((width(&one) / width(&other) - 0.5).abs() < 1e-3);
    let ticks = |picture: &str| picture.lines().filter(|line| line.contains("middle")).count();
    assert_eq!(ticks(&one), ticks(&other));
    assert_eq!(other, svg(&long, "other"), "the longer one is drawn as alone");
}

#[test]
fn memory_is_a_curve_with_its_peak() {
    // 1 GiB all along and 1 more in the second half: from the base up by half of the row, then by the other half.
    let gib = 1024f64.powi(3);
    let mut draft = Draft::new(&[(0, 1, 0)]);
    draft.call(0, "0F0").compute(0, 1000);
    draft.memory(0, MemoryKind::Weights, 0, gib).memory(0, MemoryKind::Activations, 500, gib);
    let picture = svg(&draft.finish(), "");
    assert_well_formed(&picture);
    assert!(picture.contains(">2.00 GiB</text>"));

    let curve =
        picture.lines().find(|line| line.starts_with("<path") && line.contains("fill=\"#dfe7f2\"")).unwrap();
    let data = attribute(curve, "d").unwrap();
    let numbers: Vec<f64> = data
        .split(['M', 'H', 'V', ' '])
        .filter(|text| !text.is_empty())
        .map(|text| text.parse().unwrap())
        .collect();
    let [left, base, _, first, middle, second, right, end] = numbers[..] else { panic!("{data}") };
    assert_eq!(end, base);
    assert_eq!((base - first) * 2.0, base - second);
    assert!(((left + right) / 2.0 - middle).abs() <= 1.0, "{data}");
}

#[test]
fn many_actions_share_boxes() {
    // 4 ranks · 1000 actions are twice what is drawn one by one: boxes of two.
    let mut draft = Draft::new(&[(0, 1, 0), (1, 1, 1), (2, 1, 2), (3, 1, 3)]);
    for rank in 0..4 {
        for i in 0..500 {
            draft.call(rank, &format!("{rank}F{i}")).compute(4 * i, 4 * i + 1);
            draft.call(rank, &format!("{rank}B{i}")).compute(4 * i + 1, 4 * i + 4);
        }
    }
    let timeline = draft.finish();
    let picture = svg(&timeline, "");
    assert_eq!(picture.matches("<g>").count(), 2000);
    assert!(picture.contains("a box is for up to 2 actions"));
    // One of 4 parts is forward, three are backward.
    let row = first_row(&timeline);
    assert_eq!((row.len(), row[0].2, row[0].3, row[1].2, row[1].3), (1000, 0, 25, 25, 100));
}

#[test]
fn the_same_timeline_gives_the_same_text_and_an_empty_one_gives_a_picture() {
    let timeline = from_drawing(ONE_F_ONE_B, 1000);
    assert_eq!(svg(&timeline, "title"), svg(&timeline, "title"));
    assert_well_formed(&svg(&Draft::new(&[]).finish(), ""));
    assert_well_formed(&svg(&Draft::new(&[(0, 1, 0)]).finish(), ""));
}

/// The bitmap has the SVG's rectangles: the colour in the middle of each pass is that of its box.
#[test]
fn the_bitmap_has_the_rectangles_of_the_document() {
    let timeline = from_drawing("rank 0 | F0 .. B0 == ##", 1000);
    let picture = svg(&timeline, "title");
    let file = bitmap(&timeline, "title");
    assert_eq!(file, bitmap(&timeline, "title"));
    let mut reader = png::Decoder::new(std::io::Cursor::new(&file)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut pixels).unwrap();
    let width = reader.info().width as usize;
    assert_eq!(attribute(&picture, "width"), Some(width.to_string().as_str()));
    let at = |x: f64, y: f64| {
        let start = 3 * (y as usize * width + x as usize);
        let [red, green, blue] = [0, 1, 2].map(|part| pixels[start + part]);
        format!("#{red:02x}{green:02x}{blue:02x}")
    };
    let mut compared = 0;
    for line in picture.lines().filter(|line| line.starts_with("<rect x=")) {
        let [x, y, w, h]: [f64; 4] =
            ["x", "y", "width", "height"].map(|name| attribute(line, name).unwrap().parse().unwrap());
        let fill = attribute(line, "fill").unwrap();
        let fill_is_on_top = fill != IDLE && w > 20.0;
        if fill_is_on_top {
            // Left of the number in the middle of the box.
            assert_eq!(at(x + 0.1 * w, y + 0.5 * h), fill, "{line}");
            compared += 1;
        }
    }
    assert_eq!(compared, 3);
}
