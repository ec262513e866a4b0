//! Where things go on a screen of any size: how many lines each pane has, and which columns fit
//! into a width. Pure.

use super::table::{Column, Pane};

/// Lines of a pane that is not chosen: heading, titles of the columns, one row.
const SMALL: u16 = 3;
/// Lines of the chosen pane before the others get any: the same and one row more.
const CHOSEN: u16 = 4;
/// Between two columns.
pub const GAP: u16 = 1;

/// The lines of each pane, of which there are `lines` in all. A pane has use for `wanted` lines at
/// most. The chosen one comes first.
pub fn heights(lines: u16, wanted: &[u16; Pane::COUNT], chosen: Pane) -> [u16; Pane::COUNT] {
    let mut heights = [0; Pane::COUNT];
    let mut left = lines;
    let chosen = chosen.index();
    let others = || (0..Pane::COUNT).filter(|place| *place != chosen);
    let grow = |heights: &mut [u16; Pane::COUNT], left: &mut u16, place: usize, to: u16| {
        let more = to.min(wanted[place]).saturating_sub(heights[place]).min(*left);
        heights[place] += more;
        *left -= more;
    };
    grow(&mut heights, &mut left, chosen, CHOSEN);
    for place in others() {
        // A part of one would show nothing.
        if left >= SMALL.min(wanted[place]) {
            grow(&mut heights, &mut left, place, SMALL);
        }
    }
    for place in std::iter::once(chosen).chain(others()) {
        grow(&mut heights, &mut left, place, u16::MAX);
    }
    heights
}

/// The columns that fit into this width, by their places, each with the width that it has then.
pub fn fitting(columns: &[Column], width: u16) -> Vec<(usize, u16)> {
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    let needed = |shown: &[usize]| -> u32 {
        let gaps = shown.len().saturating_sub(1) as u32 * u32::from(GAP);
        shown.iter().map(|place| u32::from(columns[*place].width)).sum::<u32>() + gaps
    };
    while needed(&shown) > u32::from(width) && shown.len() > 1 {
        // Of those with the same rank the last.
        let rank = |place: &usize| columns[*place].rank;
        let Some((at, _)) = shown.iter().enumerate().max_by_key(|(_, place)| rank(place)) else {
            break;
        };
        shown.remove(at);
    }
    let spare = u32::from(width).saturating_sub(needed(&shown)) as u16;
    let grows = shown.iter().position(|place| columns[*place].grows);
    let width_of = |(at, place): (usize, usize)| {
        let more = if Some(at) == grows { spare } else { 0 };
        (place, (columns[place].width + more).min(width))
    };
    shown.into_iter().enumerate().map(width_of).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn on_a_screen_of_24_lines_every_pane_has_a_row_and_the_chosen_one_the_rest() {
        let wanted = [4, 4, 12, 30, 10];
        assert_eq!(heights(21, &wanted, Pane::Interrupts), [3, 3, 3, 9, 3]);
        // What the chosen one has no use for goes to the others, from the top.
        assert_eq!(heights(21, &wanted, Pane::Cpus), [4, 4, 7, 3, 3]);
        assert_eq!(heights(6, &wanted, Pane::Decisions), [0, 0, 6, 0, 0]);
        assert_eq!(heights(7, &wanted, Pane::Decisions), [3, 0, 4, 0, 0]);
        assert_eq!(heights(0, &wanted, Pane::Cpus), [0; 5]);
    }

    #[test]
    fn columns_of_the_largest_rank_are_left_out_first() {
        let columns = [
            Column::number("a", 4, 0),
            Column::words("b", 10, 0).growing(),
            Column::number("c", 5, 2),
            Column::number("d", 5, 1),
        ];
        assert_eq!(fitting(&columns, 40), [(0, 4), (1, 23), (2, 5), (3, 5)]);
        assert_eq!(fitting(&columns, 26), [(0, 4), (1, 15), (3, 5)]);
        assert_eq!(fitting(&columns, 16), [(0, 4), (1, 11)]);
        assert_eq!(fitting(&columns, 7), [(0, 4)]);
        assert_eq!(fitting(&columns, 2), [(0, 2)]);
        assert!(fitting(&[], 9).is_empty());
    }

    proptest! {
        #[test]
        fn panes_never_have_more_lines_than_there_are(
            lines in 0u16..200, wanted in prop::array::uniform5(0u16..80), chosen in 0usize..5,
        ) {
            let heights = heights(lines, &wanted, Pane::ALL[chosen]);
            prop_assert!(heights.iter().sum::<u16>() <= lines);
            prop_assert!(heights.iter().zip(&wanted).all(|(height, wanted)| height <= wanted));
            // Nothing is left over while a pane has use for it, but for less than a small pane.
            let all: u16 = wanted.iter().sum();
            prop_assert_eq!(heights.iter().sum::<u16>(), lines.min(all));
        }

        #[test]
        fn columns_fit(
            widths in prop::collection::vec((1u16..30, 0u8..5, any::<bool>()), 1..12),
            width in 0u16..200,
        ) {
            let column = |(width, rank, grows)| {
                let column = Column::words("x", width, rank);
                if grows { column.growing() } else { column }
            };
            let columns: Vec<Column> = widths.into_iter().map(column).collect();
            let shown = fitting(&columns, width);
            prop_assert!(!shown.is_empty());
            let used: u16 = shown.iter().map(|(_, width)| width).sum();
            prop_assert!(used + GAP * (shown.len() as u16 - 1) <= width);
        }
    }
}
