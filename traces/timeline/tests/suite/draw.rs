use crate::draft::{Draft, ONE_F_ONE_B, from_drawing};
use trainwright_spec::program::{Axis, Stream};
use trainwright_spec::units::Picoseconds;
use trainwright_timeline::draw::{Style, draw};
use trainwright_timeline::timeline::Activity;

const UNIT: Picoseconds = Picoseconds(1_000_000);

/// Interleaved, 2 ranks with 2 stages each, 2 microbatches, F = B = 1; then the update.
const INTERLEAVED: &str = "\
rank 0 | 0F0 0F1 2F0 2F1 ... 2B0 2B1 0B0 0B1 ###
rank 8 | ... 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1 ###
";

/// Microbatch ids of one, two and three digits.
const DIGITS: &str = "\
rank 0 | F9   F10  ==== F100 .... B9   ==== B10  ==== B100
";

#[test]
fn a_drawing_with_one_cell_for_each_unit_shows_every_action() {
    for drawing in [ONE_F_ONE_B, INTERLEAVED, DIGITS] {
        assert_eq!(draw(&from_drawing(drawing, UNIT.0), &Style::exact(UNIT)), drawing);
    }
}

#[track_caller]
fn check(timeline: &str, style: Style, expected: &str) {
    assert_eq!(draw(&from_drawing(timeline, UNIT.0), &style), expected);
}

#[test]
fn a_drawing_that_is_too_wide_loses_its_middle() {
    // A label of 8 and cells of 3: 40 columns hold (40 − 8) / 3 = 10 cells: 5, the mark, and the last 4 of 18.
    check(
        ONE_F_ONE_B,
        Style { columns: Some(40), unit: Some(UNIT) },
        "\
rank 0 | F0 F1 F2 .. .. …  == .. B3 ==
rank 1 | .. F0 F1 .. .. …  B3 == .. ..
rank 2 | .. .. F0 B0 == …  .. .. .. ..
",
    );
}

#[test]
fn a_drawing_without_a_unit_fills_the_columns() {
    // A label of 8 and 20 cells of 3: a cell is 10 µs / 20 = 0.5 µs.
    check(
        "rank 0 | F0 F1 B0 == == == .. B1 == ==",
        Style::fitting(8 + 20 * 3),
        "\
one cell is 0.50 µs
rank 0 | F0 == F1 == B0 == == == == == == == .. .. B1 == == == == ==
",
    );
    // 10 units in 6 cells would lose F0 or F1: cells of the shortest action, 5 left out: 3, the mark, and the last 2.
    check(
        "rank 0 | F0 F1 B0 == == == .. B1 == ==",
        Style::fitting(8 + 6 * 3),
        "\
one cell is 1.00 µs, … leaves out 5.00 µs of 10.0 µs
rank 0 | F0 F1 B0 …  == ==
",
    );
}

#[test]
fn a_cell_shows_the_action_that_fills_most_of_it() {
    let mut draft = Draft::new(&[(0, 1, 0)]);
    draft.call(0, "0F0").compute(0, 16);
    draft.call(0, "0F1").compute(16, 25); // 4 of cell 1 against 6 of F0, 5 of cell 2 against 5 of F2
    draft.call(0, "0F2").compute(25, 34); // 4 of cell 3 and 6 of nothing
    draft.call(0, "").compute(46, 50); // 4 of cell 4 and 6 of nothing
    draft.call(0, "0B0").compute(50, 55); // half of cell 5, which is as much as nothing
    draft.call(0, "0B1").compute(60, 61); // all that there is of the last cell
    let text = draw(&draft.finish(), &Style::exact(Picoseconds(10)));
    assert_eq!(text, "rank 0 | F0 == F2 .. .. B0 B1\n");
}

#[test]
fn an_action_of_a_cells_length_never_disappears() {
    // F1 fills half of cell 1 and half of cell 2, where F0 and F2 fill the other halves.
    let mut draft = Draft::new(&[(0, 1, 0)]);
    draft.call(0, "0F0").compute(0, 15);
    draft.call(0, "0F1").compute(15, 25);
    draft.call(0, "0F2").compute(25, 40);
    assert_eq!(draw(&draft.finish(), &Style::exact(Picoseconds(10))), "rank 0 | F0 F1 F2 ==\n");
}

#[test]
fn an_action_lasts_from_its_first_to_its_last_span_on_the_compute_stream_that_is_no_wait() {
    // Waits 0..10 for a message that arrives 10..20, computes 20..30 and 40..50, waits until 60; its message
    // leaves 50..70 on another stream.
    let mut draft = Draft::new(&[(0, 1, 0)]);
    draft.call(0, "0F0").span(Stream::Compute, Activity::Wait, 0, 10);
    draft.span(Stream::Compute, Activity::Communication(Axis::Pipeline), 10, 20);
    draft.compute(20, 30).compute(40, 50).span(Stream::Compute, Activity::Wait, 50, 60);
    draft.span(Stream::Send, Activity::Communication(Axis::Pipeline), 50, 70);
    let text = draw(&draft.finish(), &Style::exact(Picoseconds(10)));
    assert_eq!(text, "rank 0 | .. F0 == == == .. ..\n");
}

#[test]
fn an_empty_timeline_is_drawn_as_empty_rows() {
    let empty = Draft::new(&[(0, 1, 0), (1, 1, 1)]).finish();
    assert_eq!(draw(&empty, &Style::exact(UNIT)), "rank 0 |\nrank 1 |\n");
    assert_eq!(draw(&Draft::new(&[]).finish(), &Style::exact(Picoseconds(0))), "");
}
