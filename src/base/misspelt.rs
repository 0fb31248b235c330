//! Finds names that are misspelt: they differ a little from the name of a variable of the library.

/// The prefix of the variables of the library.
const PREFIX: &str = "DIST_";

/// The maximum number of letters that differ.
const MAX_DISTANCE: usize = 2;

/// Returns the variable among `known` that is probably meant by a misspelt name.
pub(super) fn meant_variable(
    name: &str,
    known: impl Iterator<Item = &'static str> + Clone,
) -> Option<&'static str> {
    let ours = || known.clone();
    if !name.starts_with(PREFIX) || ours().any(|ours| ours == name) {
        return None;
    }
    let letters = |name: &str| name.trim_end_matches("_MS").replace('_', "");
    let candidates = ours().filter(|ours| ours.starts_with(PREFIX));
    let distances = candidates.map(|ours| {
        let distance = if letters(ours) == letters(name) { 0 } else { edit_distance(ours, name) };
        (distance, ours)
    });
    distances.min().filter(|&(distance, _)| distance <= MAX_DISTANCE).map(|(_, ours)| ours)
}

/// Returns the number of letters to insert, to delete or to replace until the names are equal
/// (Levenshtein's distance, by the algorithm of Wagner and Fischer).
fn edit_distance(one: &str, other: &str) -> usize {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, letter) in one.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, &found) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(*letter != found);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_letters() {
        for (one, other, distance) in [
            ("", "", 0),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("same", "same", 0),
            ("ab", "ba", 2),
        ] {
            assert_eq!(edit_distance(one, other), distance, "{one}, {other}");
            assert_eq!(edit_distance(other, one), distance, "{other}, {one}");
        }
    }

    #[test]
    fn only_names_that_are_nearly_right_are_misspelt() {
        let known = ["DIST_LOG_LEVEL", "DIST_SOCKET_IFNAME", "DIST_TIMEOUT_MS", "RANK"];
        let meant = [
            ("DIST_LOGLEVEL", Some("DIST_LOG_LEVEL")),
            ("DIST_LOG_LEVLE", Some("DIST_LOG_LEVEL")),
            ("DIST_SOCKET_IF_NAME", Some("DIST_SOCKET_IFNAME")),
            ("DIST_TIMEOUT", Some("DIST_TIMEOUT_MS")),
            ("DIST_LOG_LEVEL", None),
            ("DIST_URL", None),
            ("dist_log_level", None),
            ("RANKS", None),
        ];
        for (name, expected) in meant {
            assert_eq!(meant_variable(name, known.into_iter()), expected, "{name}");
        }
    }
}
