//! Unique visitors, by each precision, with ids of any kind.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::Place;
use crate::common::finish;

/// How a precision is asked for, what it is called, and whether "new?" can be told.
const PRECISIONS: [(&str, &str, bool); 5] = [
    ("exact", "exact", true),
    ("compact", "compact", true),
    ("near", "near-exact", true),
    ("near:48", "near-exact", true),
    ("sketch", "sketch", false),
];

/// Ids that are the same for a long way from the front, or from the back, that others begin with, or that are no text.
fn ids() -> Vec<Vec<u8>> {
    let long = "p".repeat(3_000);
    let mut ids: Vec<Vec<u8>> = vec![Vec::new(), b" ".to_vec(), b"-1".to_vec(), b"7\r".to_vec(), b"7".to_vec()];
    for n in 0..150u8 {
        ids.push(format!("{long}{n}").into_bytes());
        ids.push(format!("{n}{long}").into_bytes());
        ids.push(format!("018f2c5e-7a00-7000-8000-{n:012x}").into_bytes());
        ids.push(vec![b'a'; 5_000 + usize::from(n)]);
        if n != b'\n' {
            ids.push(vec![0xff, n, 0, n]);
        }
    }
    for last in [b'x', b'y'] {
        let mut longest = vec![b'l'; 1_000_000];
        longest.push(last);
        ids.push(longest);
    }
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
    ids
}

fn lines<'a>(ids: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    ids.into_iter().flat_map(|id| [&id[..], b"\n"].concat()).collect()
}

pub(crate) fn precisions(place: &Place) {
    for line in ["count NAME", "new NAME a", "union NAME", "forget NAME", "add NAME a --existing"] {
        place.on(&format!("unique {line}")).fails(3, &format!("`larder unique add {} ID` creates them", place.name));
    }
    let ids = ids();
    // Each third is there on the first day, or on both, or only asked for.
    let part = |thirds: &[usize]| -> Vec<&Vec<u8>> {
        ids.iter().enumerate().filter(|(at, _)| thirds.contains(&(at % 3))).map(|(_, id)| id).collect()
    };
    let (first, second, others) = (part(&[0, 1]), part(&[1]), part(&[2]));
    for (asked, precision, tells) in PRECISIONS {
        let name = format!("NAME.{}", asked.replace(':', "-"));
        let on = |line: &str| place.on(&format!("unique {}", line.replace("SITE", &name)));
        let with = |line: &str, ids: &[&Vec<u8>]| {
            place.on_with_input(&format!("unique {}", line.replace("SITE", &name)), &lines(ids.iter().copied()))
        };
        let made = format!("add SITE --expected 200 --precision {asked} --day 10 -");
        let many = |count: usize| if tells { format!("{count}\n") } else { String::new() };
        assert_eq!(with(&made, &first).exits(0), many(first.len()), "{asked}");
        assert_eq!(with("add SITE --day 10 -", &first).exits(0), many(0), "{asked}: all are known");
        let told = with("--json add SITE --day 11 -", &[&second[..], &second[..]].concat()).json();
        let count = second.len();
        let (new, unknown) = if tells { (count, 0) } else { (0, 2 * count) };
        assert_eq!((&told["new"], &told["known"]), (&json!(new), &json!(new)), "{asked}: {told}");
        assert_eq!(told["unknown"], unknown, "{asked}: {told}");
        // Of few, a sketch tells how many to a few.
        let counted = |told: &str, count: usize| {
            let told: usize = told.trim().parse().unwrap();
            let off = if tells { 0 } else { count / 50 };
            assert!(told.abs_diff(count) <= off, "{asked}: {told}, not {count}");
        };
        counted(&on("count SITE --day 10").exits(0), first.len());
        counted(&on("count SITE --day 11").exits(0), second.len());
        counted(&on("union SITE --day 11 --days 2").exits(0), first.len());
        assert_eq!(on("count SITE --day 12").exits(0), "0\n");
        let stat = on("--json count SITE --day 10 --stat").json();
        assert_eq!((&stat["precision"], &stat["expected"]), (&json!(precision), &json!(200)), "{asked}");
        if asked == "compact" {
            expects_to_miss(&stat, &on("count SITE --day 10 --stat").exits(0));
        }
        let found = with("new SITE --day 10 -", &ids.iter().collect::<Vec<_>>());
        let (code, expected) = if tells { (0, lines(others.iter().copied())) } else { (1, Vec::new()) };
        assert!(found.code() == code && found.stdout == expected, "{asked}: ids come back whole, in their order");
        each(place, &name, tells);
        // A site that saw the others, and one who came to both.
        let blog = [&others[..], &first[..1]].concat();
        with(&format!("add SITE.blog --precision {asked} --day 11 -"), &blog).exits(0);
        counted(&on("union SITE.blog SITE --day 11").exits(0), others.len() + second.len() + 1);
        counted(&on("union SITE.blog SITE --day 11 --days 2").exits(0), ids.len() + if tells { 0 } else { 3 });
        on("forget SITE --day 10").exits(0);
        assert_eq!(on("count SITE --day 10").exits(0), "0\n");
        counted(&on("count SITE --day 11").exits(0), second.len());
    }
    united(place);
    place.on("drop NAME.exact").exits(0);
    place.on("unique count NAME.exact").fails(3, "absent");
}

/// Of as many hashes of so many bits, how many ids are expected to be taken for another: the count says so, as does its line for people.
fn expects_to_miss(stat: &Value, plain: &str) {
    let (stored, bits) = (stat["stored"].as_f64().unwrap(), stat["bits"].as_f64().unwrap());
    let expected = stored * stored / (bits + 1.0).exp2();
    let missed = stat["missed"].as_f64().unwrap();
    assert!((missed / expected - 1.0).abs() < 1e-3 && (30.0..50.0).contains(&bits), "{missed}, not {expected}: {stat}");
    let line = format!("missing, expected {expected:.1e}");
    assert!(plain.lines().any(|found| found == line), "no {line:?} in {plain}");
}

/// Of the command line: an id may have no bytes at all, or the end of a line in it.
fn each(place: &Place, name: &str, tells: bool) {
    let long = "long".repeat(5_000);
    for word in if tells { ["new", "known"] } else { ["unknown"; 2] } {
        let line = format!("unique add {name} --each --day 12");
        let told = finish(&mut place.larder(&line, ["", "a\nb", "a", &long])).exits(0);
        assert_eq!(told, format!("{word} \n{word} a\nb\n{word} a\n{word} {long}\n"), "{name}");
    }
    place.on(&format!("unique count {name} --day 12")).exits(0);
}

/// Hashes of the same ids are united, whatever is kept of them; a sketch with none of them.
fn united(place: &Place) {
    let count = |line: &str| place.on(line).exits(0).trim().parse::<u64>().unwrap();
    let each = ["exact", "compact.blog"].map(|site| count(&format!("unique count NAME.{site} --day 11")));
    for (a, b) in [("exact", "compact.blog"), ("near", "exact.blog"), ("near-48.blog", "compact")] {
        // One of the second day is not among those of the blog.
        assert_eq!(count(&format!("unique union NAME.{a} NAME.{b} --day 11")), each[0] + each[1], "{a} and {b}");
    }
    place.on("unique union NAME.exact NAME.sketch --day 11").fails(2, "cannot be united");
}

pub(crate) fn integers(place: &Place) {
    // Numbers from which servers keep more bytes, and the same one written in another way.
    let mut ids: Vec<String> = [0, 7, u64::MAX, (1 << 45) - 1, 1 << 45, 1 << 63].map(|id: u64| id.to_string()).into();
    ids.extend((1_000..3_000).map(|id| id.to_string()));
    let input = ids.join("\n") + "\n007\n";
    for (precision, tells) in [("exact", true), ("compact", true), ("near", true), ("sketch", false)] {
        let name = format!("NAME.{precision}");
        let on = |line: &str| place.on(&format!("unique {}", line.replace("SITE", &name)));
        let with = |line: &str, input: &str| {
            place.on_with_input(&format!("unique {}", line.replace("SITE", &name)), input.as_bytes())
        };
        let made = format!("add SITE --ids-are integer --expected 3000 --precision {precision} --day 10 -");
        let many = |count: usize| if tells { format!("{count}\n") } else { String::new() };
        assert_eq!(with(&made, &input).exits(0), many(ids.len()), "{precision}");
        assert_eq!(with("add SITE --day 10 -", &input).exits(0), many(0), "{precision}");
        let told: usize = on("count SITE --day 10").exits(0).trim().parse().unwrap();
        assert!(told.abs_diff(ids.len()) <= if tells { 0 } else { 100 }, "{precision}: {told}");
        for wrong in ["-1", "18446744073709551616", "", "x", "7.0", "+7"] {
            with("add SITE --day 10 -", &format!("99\n{wrong}\n")).fails(2, "18446744073709551615");
            with("new SITE --day 10 -", &format!("99\n{wrong}\n")).fails(2, "18446744073709551615");
        }
        assert_eq!(on("count SITE --day 10").exits(0), format!("{told}\n"), "{precision}: 99 came with none of them");
        let new = with("new SITE --day 10 -", "7\n5\n18446744073709551614\n");
        let (code, text) = if tells { (0, "5\n18446744073709551614\n") } else { (1, "") };
        assert_eq!(new.exits(code), text, "{precision}");
        on("add SITE --ids-are any --day 10 a").fails(8, "integer");
    }
    place.on("unique add NAME.any --day 10 7").exits(0);
    place.on("unique union NAME.any NAME.exact --day 10").fails(2, "cannot be united");
}

/// A period is of any length, and begins by a clock of any zone.
pub(crate) fn zones(place: &Place) {
    // Half past one on the first of February where it is half past five hours later than in UTC, and half past eight in the evening before where it is not.
    let at = "2026-01-31T20:00:00Z";
    let made = [("kolkata", "--offset +05:30", 20_485), ("utc", "", 20_484), ("hour", "--period 1h", 491_636)];
    for (site, options, period) in made {
        let told = place.on(&format!("--json unique add NAME.{site} {options} --at {at} ann bob")).json();
        assert_eq!((&told["period"], &told["new"]), (&json!(period), &json!(2)), "{site}");
        place.on(&format!("unique add NAME.{site} --at 2026-01-31T18:29:59Z cat")).exits(0);
        let count = |day: u64| place.on(&format!("unique count NAME.{site} --day {day}")).exits(0);
        let days = if site == "utc" { ["0\n", "3\n"] } else { ["1\n", "2\n"] };
        let before = if site == "hour" { period - 2 } else { period - 1 };
        assert_eq!([count(before), count(period)], days, "{site}");
    }
    place.on("unique add NAME.utc --offset +01:00 x").fails(8, "offset");
    place.on("unique add NAME.utc --period 1h x").fails(8, "period");
    place.on("unique add NAME.other --offset +15:00 x").fails(2, "offset");
}
