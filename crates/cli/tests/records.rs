//! `larder records` on real servers: with items under conditional writes, and in bit fields.

mod common;

use common::{on, on_with_input};
use larder::records::GROUPS_MAX;
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version};
use serde_json::{Value, json};

const FIELDS: &str = "place:CA-ON|CA-QC|US-NY visits:u7 paid:bit delta:i5 tag:bytes2";

/// A line is right on both kinds of servers, and in a folder.
fn on_each(act: impl Fn(&str)) {
    let memcached = Memcached::start(Version::New, &[]);
    act(&memcached.url());
    let redis = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    act(&redis.url());
    let folder = tempfile::tempdir().unwrap();
    act(&format!("file:{}", folder.path().join("store").display()));
}

#[test]
fn records_are_defined_set_read_and_counted() {
    on_each(|url| {
        let told = on(url, &format!("--json records define users {FIELDS}")).json();
        assert_eq!((&told["bits"], &told["fields"][1]["kind"]), (&json!(2 + 7 + 1 + 5 + 16), &json!("u7")));
        assert_eq!(on(url, &format!("records define users {FIELDS}")).code(), 0, "the same again");
        assert_eq!(on(url, "records max users").exits(1), "");
        assert_eq!(on(url, "--json records max users").json()["max"], Value::Null);
        on(url, "records set users 17 place=US-NY visits=100 paid=1 delta=-16 tag=00ff").exits(0);
        on(url, "records set users 17 visits=3").exits(0);
        let line = "17\tplace=US-NY\tvisits=3\tpaid=1\tdelta=-16\ttag=00ff\n";
        assert_eq!(on(url, "records get users 17").exits(0), line);
        assert_eq!(on(url, "records get users 16 17 --field visits").exits(0), "0\n3\n");
        let fields = json!({"place": "US-NY", "visits": 3, "paid": true, "delta": -16, "tag": "00ff"});
        assert_eq!(on(url, "--json records get users 17").json(), json!({"id": 17, "fields": fields}));
        let field = on(url, "--json records get users 17 --field visits").json();
        assert_eq!(field, json!({"id": 17, "fields": {"visits": 3}}));
        assert_eq!(on(url, "records max users").exits(0), "17\n");
        on(url, "records set users 18 place=CA-ON").exits(0);
        assert_eq!(on(url, "records aggregate users").exits(0), "19\n");
        assert_eq!(on(url, "records aggregate users place paid").exits(0), "17\t\t0\n1\tCA-ON\t0\n1\tUS-NY\t1\n");
        let ids = "records aggregate users place --ids 17 --ids 18 --ids 17";
        assert_eq!(on(url, ids).exits(0), "2\tUS-NY\n1\tCA-ON\n");
        assert_eq!(on(url, "drop users").exits(0), "packed records\n");
    });
}

#[test]
fn many_records_come_from_standard_input_and_a_wrong_line_is_named() {
    on_each(|url| {
        on(url, &format!("records define users {FIELDS}")).exits(0);
        let places = ["CA-ON", "CA-QC", "US-NY"];
        let lines: String = (0..40_000).map(|id| format!("{id} place={}\n", places[id % 3])).collect();
        on_with_input(url, "records set users -", lines.as_bytes()).exits(0);
        let counts = on(url, "records aggregate users place").exits(0).to_owned();
        assert_eq!(counts, "13334\tCA-ON\n13333\tCA-QC\n13333\tUS-NY\n");
        let ids: String = (0..3_000).map(|id| format!("{id}\n")).collect();
        assert_eq!(on_with_input(url, "records aggregate users --ids -", ids.as_bytes()).exits(0), "3000\n");
        let read = on_with_input(url, "records get users - --field place", b"2\n0\n39999\n").exits(0).to_owned();
        assert_eq!(read, "US-NY\nCA-ON\nCA-ON\n");
        // Of a batch with a wrong line, nothing is written.
        for (line, told) in [
            ("41 visits=128", "visits"),
            ("-1 visits=1", "18446744073709551615"),
            ("18446744073709551616 visits=1", "18446744073709551615"),
            ("41 place=XX-YY", "place"),
            ("41 visits", "FIELD=VALUE"),
            ("41 age=1", "age"),
            ("", "line 2"),
        ] {
            let done = on_with_input(url, "records set users -", format!("40000 visits=9\n{line}\n").as_bytes());
            done.fails(2, told);
            assert!(done.stderr.contains("line 2"), "{}", done.stderr);
            assert_eq!(on(url, "records max users").exits(0), "39999\n", "{line:?}");
        }
    });
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_written() {
    on_each(|url| {
        on(url, "records get users 1").fails(3, "`larder records define users FIELD…` makes them");
        on(url, "records define users visits:u7").exits(0);
        on(url, "records define users visits:u8").fails(8, "visits");
        on(url, "records define other visits:u65").fails(2, "1 to 64");
        on(url, "records set users 1 visits=128").fails(2, "visits");
        on(url, "records set users 1 visits=-1").fails(2, "visits");
        on(url, "records set users 18446744073709551615 visits=1").fails(2, "over the range");
        on(url, "records set users 18446744073709551616 visits=1").fails(2, "18446744073709551615");
        on(url, "records set users -- -1 visits=1").fails(2, "18446744073709551615");
        on(url, "records set users - visits=1").fails(2, "standard input");
        on(url, "records bits active 3 --on").exits(0);
        for id in ["-1", "18446744073709551616"] {
            for line in ["records get users --", "records bits active --on --", "records bits active --off --"] {
                on(url, &format!("{line} {id}")).fails(2, "18446744073709551615");
            }
            on(url, &format!("records aggregate users visits --ids={id}")).fails(2, "18446744073709551615");
            let input = format!("3\n{id}\n");
            for line in ["get users -", "bits active - --on", "bits active - --off", "aggregate users visits --ids -"] {
                let done = on_with_input(url, &format!("records {line}"), input.as_bytes());
                done.fails(2, "18446744073709551615");
                assert!(done.stderr.contains("line 2: "), "{line}: {}", done.stderr);
            }
        }
        for line in ["get users", "bits active --on", "bits active --off", "aggregate users visits --ids"] {
            on(url, &format!("records {line} 18446744073709551615")).fails(2, "over the range");
        }
        assert_eq!(on(url, "records bits active").exits(0), "1\n");
        on(url, "records get users 1 --field age").fails(2, "visits");
        on(url, "records bits users 1 --field visits").fails(2, "no bit");
        assert_eq!(on(url, "records max users").exits(1), "");
    });
}

#[test]
fn records_are_grouped_by_signed_numbers_and_bytes_of_63_bits_and_no_more() {
    on_each(|url| {
        on(url, "records define users delta:i5 tag:bytes2 wide:i62 paid:bit code:bytes8").exits(0);
        for line in ["1 delta=-16 tag=00ff", "2 delta=-16 tag=ff00", "3 delta=15 tag=ff00 wide=-1 paid=1"] {
            on(url, &format!("records set users {line}")).exits(0);
        }
        assert_eq!(on(url, "records aggregate users delta").exits(0), "2\t-16\n1\t0\n1\t15\n");
        assert_eq!(on(url, "records aggregate users tag").exits(0), "2\tff00\n1\t0000\n1\t00ff\n");
        assert_eq!(on(url, "records aggregate users wide paid").exits(0), "3\t0\t0\n1\t-1\t1\n");
        assert_eq!(on(url, "records aggregate users code").exits(0), "4\t0000000000000000\n");
        assert_eq!(on(url, "records aggregate users wide paid delta --ids 3").exits(0), "1\t-1\t1\t15\n");
    });
    let help = on("memory:", "records aggregate --help").exits(0);
    assert!(help.contains("1,048,576") && GROUPS_MAX == 1_048_576, "{help}");
}

#[test]
fn single_bits_are_the_smallest_case() {
    on_each(|url| {
        on(url, "records bits active 3").fails(3, "absent");
        on(url, "records bits active 3 70000 --on").exits(0);
        assert_eq!(on(url, "records bits active 3 70000").exits(0), "1\n1\n");
        assert_eq!(on(url, "records bits active 3 4").exits(1), "1\n0\n");
        assert_eq!(on(url, "records bits active").exits(0), "2\n");
        on(url, "records bits active 3 --off").exits(0);
        assert_eq!(on(url, "--json records bits active").json()["ones"], 1);
        let ids: String = (0..20_000).map(|id| format!("{id}\n")).collect();
        on_with_input(url, "records bits active - --on", ids.as_bytes()).exits(0);
        assert_eq!(on(url, "records bits active").exits(0), "20001\n");
    });
}
