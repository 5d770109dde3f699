//! `larder lookup` on real servers.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use common::{larder, on, on_with_input, wait};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version};
use serde_json::{Value, json};

/// A line is right on both kinds of servers, and in a folder.
fn on_each(act: impl Fn(&str)) {
    let memcached = Memcached::start(Version::New, &[]);
    act(&memcached.url());
    let redis = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    act(&redis.url());
    let folder = tempfile::tempdir().unwrap();
    act(&format!("file:{}", folder.path().join("store").display()));
}

const CITIES: &str = "\
start,end,city,country
1.0.0.0,1.0.0.255,Lund,SE
1.0.2.0,1.0.3.255,\"Paris, Texas\",US
2001:db8::,2001:db8:ffff:ffff:ffff:ffff:ffff:ffff,Oslo,NO
";

#[test]
fn a_table_is_built_looked_up_and_built_anew() {
    on_each(|url| {
        on(url, "lookup get cities 1.0.0.1").fails(3, "larder lookup build cities FILE");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cities.csv");
        std::fs::write(&file, CITIES).unwrap();
        let told = on(url, &format!("--json lookup build cities {}", file.display())).json();
        assert_eq!((&told["rows"], &told["version"], &told["swept"]), (&json!(3), &json!(1), &json!(true)));
        assert_eq!(on(url, "lookup get cities 1.0.0.255").exits(0), "1.0.0.255\tcity=Lund\tcountry=SE\n");
        let many = on(url, "lookup get cities 1.0.3.7 1.0.1.0 2001:db8::9 ::1");
        assert_eq!(
            many.exits(1),
            "1.0.3.7\tcity=Paris, Texas\tcountry=US\n1.0.1.0\n2001:db8::9\tcity=Oslo\tcountry=NO\n::1\n"
        );
        let found = on(url, "--json lookup get cities 1.0.3.7").json();
        let fields = json!({"city": "Paris, Texas", "country": "US"});
        assert_eq!(found, json!({"key": "1.0.3.7", "first": "1.0.2.0", "last": "1.0.3.255", "fields": fields}));
        assert_eq!(on(url, "--json lookup get cities ::1").json()["fields"], Value::Null);
        let input = on_with_input(url, "lookup get cities - --field country", b"1.0.3.7\n::ffff:1.0.0.9\n");
        assert_eq!(input.exits(0), "US\nSE\n");
        on(url, "lookup get cities 1.0.3.7 --field town").fails(2, "there are: city, country");
        on(url, "lookup get cities 1.0.3").fails(2, "neither an IPv4 or IPv6 address");
        on(url, "lookup get cities 17").fails(2, "17 is a number");
        assert_eq!(on(url, "lookup stat cities").exits(0).lines().next(), Some("version\t1"));
        let ids = on_with_input(url, "lookup build cities - --header id,name --delimiter \\t", b"7\tseven\n9\tnine\n");
        assert!(ids.exits(0).starts_with("2 rows in 1 blocks, "));
        assert_eq!(on(url, "lookup get cities 7 8").exits(1), "7\tname=seven\n8\n");
        assert_eq!(
            on(url, "inspect cities").exits(0).lines().next().map(|line| line.contains("packed table")),
            Some(true)
        );
        assert_eq!(on(url, "drop cities").exits(0), "packed table\n");
    });
}

#[test]
fn a_broken_row_is_named_and_nothing_is_half_loaded() {
    on_each(|url| {
        on_with_input(url, "lookup build cities -", CITIES.as_bytes()).exits(0);
        for (broken, said) in [
            ("1.0.4.0,1.0.4.255,Umeå\n", "row 4 (line 5): 3 fields, not 4"),
            ("2001:db9::,2001:db9::1,Umeå,SE\n3.0.0.0,3.0.0.1,x,y\n", "row 5 (line 6): 3.0.0.0 comes after IPv6"),
            ("2001:db8::1,2001:db9::1,Umeå,SE\n", "row 4 (line 5): 2001:db8::1 to 2001:db9::1 overlaps row 3"),
            ("2001:db9::z,2001:db9::1,Umeå,SE\n", "row 4 (line 5): \"2001:db9::z\" is neither"),
            ("2001:db9::2,2001:db9::1,Umeå,SE\n", "before it begins"),
        ] {
            let csv = format!("{CITIES}{broken}");
            on_with_input(url, "lookup build cities -", csv.as_bytes()).fails(2, said);
            on_with_input(url, "lookup build other -", csv.as_bytes()).fails(2, said);
        }
        on(url, "lookup build cities /no/such/file").fails(2, "/no/such/file cannot be read");
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().display().to_string();
        on(url, &format!("lookup build cities {folder}")).fails(2, &format!("{folder} cannot be read: "));
        on(url, "lookup build cities x --delimiter ,,").fails(2, "one ASCII character");
        on(url, "lookup get other 1").fails(3, "other");
        assert_eq!(on(url, "lookup stat cities").exits(0).lines().nth(1), Some("rows\t3"));
        assert_eq!(on(url, "lookup get cities 1.0.0.0 --field city").exits(0), "Lund\n");
    });
}

#[test]
fn a_table_of_many_rows_is_read_from_standard_input_in_order() {
    on_each(|url| {
        let csv: String = (0..20_000).map(|id| format!("{id},name {id},{}\n", id % 7)).collect();
        let built = on_with_input(url, "--json lookup build names - --header id,name,class", csv.as_bytes()).json();
        assert!(built["blocks"].as_u64() > Some(20), "{built}");
        let keys: String = (0..20_000).rev().map(|id| format!("{id}\n")).collect();
        let names = on_with_input(url, "lookup get names - --field name", keys.as_bytes()).exits(0).to_owned();
        let expected: String = (0..20_000).rev().map(|id| format!("name {id}\n")).collect();
        assert!(names == expected, "names are not in the order of their keys");
        on_with_input(url, "lookup get names -", b"1\n2\nx\n").fails(2, "line 3");
    });
}

#[test]
fn bytes_that_are_no_utf_8_come_out_as_they_went_in() {
    let memcached = Memcached::start(Version::New, &[]);
    let url = &memcached.url();
    on_with_input(url, "lookup build cities - --header id,key,city", b"1,k,Ume\xe5\n2,l,Oslo\n").exits(0);
    let line = |words: &str| {
        let done = on(url, &format!("lookup get cities {words}"));
        assert_eq!(done.code(), 0, "{}", done.stderr);
        done
    };
    assert_eq!(line("1").stdout, b"1\tkey=k\tcity=Ume\xe5\n");
    assert_eq!(line("1 2 --field city").stdout, b"Ume\xe5\nOslo\n");
    let city = json!({"base64": "VW1l5Q=="});
    assert_eq!(line("1 --json").json()["fields"], json!({"key": "k", "city": city}));
    // Fields stand apart from what tells of the row: one may have any name.
    assert_eq!(line("1 --field city --json").json(), json!({"key": "1", "fields": {"city": city}}));
    assert_eq!(line("2 --field key --json").json(), json!({"key": "2", "fields": {"key": "l"}}));
}

/// A `lookup get` whose keys come one by one.
struct Reading {
    child: Child,
    keys: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Reading {
    fn start(url: &str, options: &str) -> Reading {
        let line = format!("lookup get places - {options}");
        let mut command = larder(line.split_whitespace());
        let mut child = command.env("LARDER_STORE", url).stdin(Stdio::piped()).spawn().unwrap();
        let (keys, lines) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Reading { child, keys, lines }
    }

    /// The line of key 1.
    fn line(&mut self) -> String {
        self.keys.write_all(b"1\n").unwrap();
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    fn end(self) -> common::Done {
        drop(self.keys);
        wait(self.child)
    }
}

#[test]
fn a_table_that_is_built_with_other_columns_meanwhile_is_read_by_their_names() {
    let memcached = Memcached::start(Version::New, &[]);
    let url = &memcached.url();
    let build = |csv: &str| _ = on_with_input(url, "lookup build places -", csv.as_bytes()).exits(0);
    for (options, before, after) in [
        ("--field country", "SE\n", "NO\n"),
        ("", "1\tcountry=SE\tcity=Lund\n", "1\tregion=Viken\tcountry=NO\tcity=Oslo\n"),
        ("--json --field city", "\"fields\":{\"city\":\"Lund\"}", "\"fields\":{\"city\":\"Oslo\"}"),
    ] {
        build("id,country,city\n1,SE,Lund\n");
        let mut reading = Reading::start(url, options);
        let line = reading.line();
        assert!(line.contains(before), "{options}: {line}");
        build("id,region,country,city\n1,Viken,NO,Oslo\n");
        let line = reading.line();
        assert!(line.contains(after), "{options}: {line}");
        reading.end().exits(0);
    }
    build("id,country,city\n1,SE,Lund\n");
    let mut reading = Reading::start(url, "--field city");
    assert_eq!(reading.line(), "Lund\n");
    build("id,town\n1,Oslo\n");
    assert_eq!(reading.line(), "");
    reading.end().fails(2, "no column \"city\"; there are: town");
}

#[test]
fn csv_that_is_cut_off_in_quotes_builds_nothing_and_quotes_may_be_data() {
    let memcached = Memcached::start(Version::New, &[]);
    let url = &memcached.url();
    on_with_input(url, "lookup build names -", b"id,name\n7,seven\n").exits(0);
    for (csv, said) in [
        ("id,name\n1,a\n2,\"b\n3,c\n4,d\n", "row 2 (line 3): its quotes are not closed"),
        ("id,name\n1,\"a\"\n2,\"cut o", "row 2 (line 3): its quotes are not closed"),
        ("id,name\n1,a\n2,\"b\" c\n", "row 2 (line 3): text stands behind a closing quote"),
    ] {
        on_with_input(url, "lookup build names -", csv.as_bytes()).fails(2, said);
        assert_eq!(on(url, "lookup get names 7").exits(0), "7\tname=seven\n");
    }
    let inches = b"id\tname\n1\t\"a\n2\t5\" disk\n3\t\"c\"\n";
    on_with_input(url, "lookup build names - --delimiter \\t --no-quotes", inches).exits(0);
    assert_eq!(on(url, "lookup get names 1 2 3 --field name").exits(0), "\"a\n5\" disk\n\"c\"\n");
}

#[test]
fn an_input_without_end_is_refused_at_a_limit() {
    let memcached = Memcached::start(Version::New, &[]);
    let url = &memcached.url();
    let said = "the header (line 1): it has more than 67108864 bytes, the limit";
    on(url, "lookup build names /dev/zero").fails(2, said);
    on(url, "lookup build names /dev/zero --header id,name").fails(2, "row 1 (line 1): it has more than 67108864");
    on(url, "lookup get names 1").fails(3, "names");
}

#[test]
fn an_input_without_rows_changes_nothing_unless_it_may_be_empty() {
    let memcached = Memcached::start(Version::New, &[]);
    let url = &memcached.url();
    let build = "lookup build names - --header id,name";
    on_with_input(url, build, b"").fails(2, "standard input has no rows");
    on(url, "lookup get names 1").fails(3, "names");
    on_with_input(url, build, b"1,one\n").exits(0);
    on_with_input(url, build, b"").fails(2, "--allow-empty");
    on_with_input(url, "lookup build names -", b"id,name\n").fails(2, "standard input has no rows");
    on(url, "lookup build names /dev/null --header id,name").fails(2, "/dev/null has no rows");
    assert_eq!(on(url, "lookup get names 1").exits(0), "1\tname=one\n");
    assert!(on_with_input(url, &format!("{build} --allow-empty"), b"").exits(0).starts_with("0 rows in 0 blocks"));
    assert_eq!(on(url, "lookup get names 1").exits(1), "1\n");
}
