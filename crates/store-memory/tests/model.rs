//! Random sequences of ops against a plain map, by a clock that is turned by hand.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use larder_core::{
    Arith, Cas, Error, ErrorKind, Initial, Key, ManualClock, Op, PutMode, Remaining, Reply, Ttl, Verb, Want,
};
use larder_store_memory::MemoryStore;
use proptest::prelude::*;

const VALUE_BYTES_MAX: usize = 600;

#[derive(Clone, Debug)]
enum Step {
    Get(u8, u8),
    Put(u8, Mode, Vec<u8>, u32, Option<u16>),
    Delete(u8, Option<Token>),
    Touch(u8, Option<u16>),
    Arith(u8, Arith, Option<(u64, Option<u16>)>),
    Advance(u16),
    Reclaim,
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas(Token),
}

/// Which token a conditional op brings.
#[derive(Clone, Copy, Debug)]
enum Token {
    Current,
    Old,
    OtherSession,
}

fn step() -> impl Strategy<Value = Step> {
    // Few keys, so that they meet; of several lengths, all bytes.
    let key = || 0..6u8;
    let ttl = || prop_oneof![2 => Just(None), 1 => (1..60u16).prop_map(Some)];
    let token = || prop_oneof![3 => Just(Token::Current), 1 => Just(Token::Old), 1 => Just(Token::OtherSession)];
    let mode = prop_oneof![
        3 => Just(Mode::Set),
        2 => Just(Mode::Add),
        1 => Just(Mode::Replace),
        4 => Just(Mode::Append),
        2 => Just(Mode::Prepend),
        2 => token().prop_map(Mode::Cas),
    ];
    let value = prop_oneof![
        2 => prop::collection::vec(any::<u8>(), 0..50),
        1 => (0..900usize).prop_map(|len| vec![b'x'; len]),
        2 => any::<u64>().prop_map(|number| number.to_string().into_bytes()),
        1 => Just(b"9".to_vec()),
    ];
    let by = || prop_oneof![0..20u64, any::<u64>()];
    let arith = prop_oneof![by().prop_map(Arith::Incr), by().prop_map(Arith::Decr)];
    prop_oneof![
        4 => (key(), 0..16u8).prop_map(|(key, want)| Step::Get(key, want)),
        6 => (key(), mode, value, prop_oneof![Just(0), any::<u32>()], ttl())
            .prop_map(|(key, mode, value, flags, ttl)| Step::Put(key, mode, value, flags, ttl)),
        1 => (key(), prop::option::of(token())).prop_map(|(key, token)| Step::Delete(key, token)),
        2 => (key(), ttl()).prop_map(|(key, ttl)| Step::Touch(key, ttl)),
        3 => (key(), arith, prop::option::of((any::<u64>(), ttl())))
            .prop_map(|(key, arith, initial)| Step::Arith(key, arith, initial)),
        2 => (0..40u16).prop_map(Step::Advance),
        1 => Just(Step::Reclaim),
    ]
}

#[derive(Clone, Debug)]
struct Plain {
    value: Vec<u8>,
    flags: u32,
    expiry_ms: Option<u64>,
    version: u64,
}

/// The map, and the store it is compared with.
struct Pair {
    store: MemoryStore,
    clock: Arc<ManualClock>,
    now_ms: u64,
    plain: HashMap<u8, Plain>,
    version: u64,
    /// The tokens that were seen of a key, and of which version.
    tokens: HashMap<(u8, u64), u64>,
    session: Option<u64>,
}

fn key(key: u8) -> Key {
    let lens = [1, 2, 8, 16, 100, 250];
    Key::new(vec![key.wrapping_mul(50); lens[usize::from(key)]]).unwrap()
}

fn ttl(ms: Option<u16>) -> Ttl {
    ms.map_or(Ttl::Never, |ms| Ttl::After(Duration::from_millis(ms.into())))
}

impl Pair {
    fn new(bytes_max: Option<usize>, evict: bool) -> Pair {
        let clock = Arc::new(ManualClock::default());
        let mut builder =
            MemoryStore::builder().clock(clock.clone()).value_bytes_max(VALUE_BYTES_MAX).evict(evict).shards(2);
        if let Some(bytes) = bytes_max {
            builder = builder.bytes_max(bytes);
        }
        let store = builder.build().unwrap();
        Pair { store, clock, now_ms: 0, plain: HashMap::new(), version: 0, tokens: HashMap::new(), session: None }
    }

    fn apply(&self, at: u8, verb: Verb) -> Result<Reply, Error> {
        self.store.apply(&Op::new(key(at), verb))
    }

    /// Applies, and tells whether anything was evicted meanwhile.
    fn apply_counting(&self, at: u8, verb: Verb) -> (Result<Reply, Error>, bool) {
        let before = self.store.stats().evicted;
        let reply = self.apply(at, verb);
        (reply, self.store.stats().evicted != before)
    }

    fn expiry_ms(&self, ttl_ms: Option<u16>) -> Option<u64> {
        ttl_ms.map(|ms| self.now_ms + u64::from(ms))
    }

    /// The item as the map has it, unless it has expired.
    fn live(&mut self, at: u8) -> Option<&mut Plain> {
        let now_ms = self.now_ms;
        self.plain.retain(|_, item| item.expiry_ms.is_none_or(|ms| ms > now_ms));
        self.plain.get_mut(&at)
    }

    fn insert(&mut self, at: u8, value: Vec<u8>, flags: u32, expiry_ms: Option<u64>) {
        self.version += 1;
        self.plain.insert(at, Plain { value, flags, expiry_ms, version: self.version });
    }

    /// Reads everything of an item and compares. Learns the token.
    fn check(&mut self, at: u8, may_be_gone: bool) -> Option<Cas> {
        let reply = self.apply(at, Verb::Get { want: Want::all() }).unwrap();
        let Some(item) = reply.into_item() else {
            assert!(may_be_gone || self.live(at).is_none(), "key {at} is gone");
            self.plain.remove(&at);
            return None;
        };
        let now_ms = self.now_ms;
        let plain = self.live(at).unwrap_or_else(|| panic!("key {at} is there, and should not be")).clone();
        assert_eq!(item.value, plain.value);
        assert_eq!(item.flags, plain.flags);
        let left = plain.expiry_ms.map_or(Remaining::Never, |ms| Remaining::For(Duration::from_millis(ms - now_ms)));
        assert_eq!(item.ttl, left);
        let cas = item.cas.unwrap();
        assert_eq!(*self.session.get_or_insert(cas.session), cas.session);
        let version = *self.tokens.entry((at, cas.token)).or_insert(plain.version);
        assert_eq!(version, plain.version, "a token came back for another version");
        Some(cas)
    }

    /// The token to bring, and whether it is the item's.
    fn token(&mut self, at: u8, token: Token, gone: bool) -> (Cas, Option<bool>) {
        let current = self.check(at, gone);
        let session = self.session.unwrap_or(1);
        match (token, current) {
            (Token::OtherSession, _) => (Cas { token: 1, session: session ^ 1 }, None),
            (Token::Current, Some(cas)) => (cas, Some(true)),
            _ => {
                let tokens = self
                    .tokens
                    .keys()
                    .filter(|(key, token)| *key == at && Some(*token) != current.map(|cas| cas.token));
                let token = tokens.map(|(_, token)| *token).next().unwrap_or(u64::MAX);
                // Without an item of the key, no session was seen: any would be another.
                (Cas { token, session }, self.session.map(|_| false))
            }
        }
    }

    fn put(&mut self, at: u8, mode: Mode, value: &[u8], flags: u32, ttl_ms: Option<u16>, evicts: bool) {
        let limit = VALUE_BYTES_MAX + Key::BYTES_MAX - key(at).as_bytes().len();
        let mut own = None;
        let put_mode = match mode {
            Mode::Set => PutMode::Set,
            Mode::Add => PutMode::Add,
            Mode::Replace => PutMode::Replace,
            Mode::Append => PutMode::Append,
            Mode::Prepend => PutMode::Prepend,
            Mode::Cas(token) => {
                let (cas, matches) = self.token(at, token, evicts);
                own = matches;
                PutMode::Cas(cas)
            }
        };
        let verb = Verb::Put { mode: put_mode, value: value.to_vec().into(), flags, ttl: ttl(ttl_ms) };
        if evicts {
            self.check(at, true);
        }
        let (reply, evicted) = self.apply_counting(at, verb);
        if full(&reply) {
            return;
        }
        let joins = matches!(mode, Mode::Append | Mode::Prepend);
        if value.len() > limit && !joins {
            let error = reply.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadInput);
            let detail = error.to_string();
            assert!(detail.contains(&limit.to_string()) && detail.contains(&value.len().to_string()), "{detail}");
            return;
        }
        let expiry_ms = self.expiry_ms(ttl_ms);
        let old_bytes = self.live(at).map(|item| item.value.len());
        let expect = |old_bytes: Option<usize>| match (mode, old_bytes) {
            (Mode::Cas(_), _) if own.is_none() => Reply::Exists,
            (Mode::Cas(_), None) => Reply::Miss,
            (Mode::Cas(_), Some(_)) if own == Some(false) => Reply::Exists,
            (Mode::Add, Some(_)) | (Mode::Replace | Mode::Append | Mode::Prepend, None) => Reply::NotStored,
            (Mode::Append | Mode::Prepend, Some(bytes)) if bytes + value.len() > limit => Reply::NotStored,
            _ => Reply::Stored,
        };
        let mut expected = expect(old_bytes);
        // What had to be evicted may have been the very item.
        if evicted && reply.as_ref().is_ok_and(|reply| *reply != expected) {
            self.plain.remove(&at);
            expected = expect(None);
        }
        assert_eq!(reply.unwrap(), expected);
        if expected == Reply::Stored {
            let old = self.plain.get(&at).cloned();
            match (mode, old) {
                (Mode::Append, Some(old)) => self.insert(at, [&old.value, value].concat(), old.flags, old.expiry_ms),
                (Mode::Prepend, Some(old)) => self.insert(at, [value, &old.value].concat(), old.flags, old.expiry_ms),
                _ => self.insert(at, value.to_vec(), flags, expiry_ms),
            }
        }
    }

    fn arith(&mut self, at: u8, arith: Arith, initial: Option<(u64, Option<u16>)>) {
        let verb = Verb::Arith { arith, initial: initial.map(|(value, ms)| Initial { value, ttl: ttl(ms) }) };
        let (reply, evicted) = self.apply_counting(at, verb);
        if full(&reply) {
            return;
        }
        if evicted && reply.as_ref().ok() == Some(&initial.map_or(Reply::Miss, |(number, _)| Reply::Number(number))) {
            self.plain.remove(&at);
        }
        let Some(item) = self.live(at).cloned() else {
            let Some((number, ms)) = initial else { return assert_eq!(reply.unwrap(), Reply::Miss) };
            assert_eq!(reply.unwrap(), Reply::Number(number));
            return self.insert(at, number.to_string().into_bytes(), 0, self.expiry_ms(ms));
        };
        let text = std::str::from_utf8(&item.value).unwrap_or("");
        let number = if text.starts_with('+') || text.len() > 20 { None } else { text.parse::<u64>().ok() };
        let Some(number) = number else { return assert_eq!(reply.unwrap_err().kind(), ErrorKind::BadInput) };
        let new = match arith {
            Arith::Incr(by) => number.wrapping_add(by),
            Arith::Decr(by) => number.saturating_sub(by),
        };
        assert_eq!(reply.unwrap(), Reply::Number(new));
        self.insert(at, new.to_string().into_bytes(), item.flags, item.expiry_ms);
    }

    fn step(&mut self, step: Step, evicts: bool) {
        match step {
            Step::Get(at, want) => {
                let (want, hit) = (Want::from_bits_truncate(want), self.check(at, evicts).is_some());
                let Reply::Item(item) = self.apply(at, Verb::Get { want }).unwrap() else { return assert!(!hit) };
                let plain = &self.plain[&at];
                assert_eq!(item.value, if want.contains(Want::VALUE) { &plain.value[..] } else { b"" });
                assert_eq!(item.flags, if want.contains(Want::FLAGS) { plain.flags } else { 0 });
                assert_eq!(item.cas.is_some(), want.contains(Want::CAS));
                assert_eq!(item.ttl != Remaining::Unknown, want.contains(Want::TTL));
            }
            Step::Put(at, mode, value, flags, ttl_ms) => self.put(at, mode, &value, flags, ttl_ms, evicts),
            Step::Delete(at, token) => {
                let (cas, own) = token.map(|token| self.token(at, token, evicts)).unzip();
                if evicts {
                    self.check(at, true);
                }
                let expected = match (own, self.live(at)) {
                    (Some(None), _) => Reply::Exists,
                    (_, None) => Reply::Miss,
                    (Some(Some(false)), _) => Reply::Exists,
                    _ => Reply::Deleted,
                };
                assert_eq!(self.apply(at, Verb::Delete { cas }).unwrap(), expected);
                if expected == Reply::Deleted {
                    self.plain.remove(&at);
                }
            }
            Step::Touch(at, ttl_ms) => {
                let cas = self.check(at, evicts);
                let reply = self.apply(at, Verb::Touch { ttl: ttl(ttl_ms) });
                let expiry_ms = self.expiry_ms(ttl_ms);
                if full(&reply) || (evicts && matches!(reply, Ok(Reply::Miss))) {
                    return;
                }
                match self.live(at) {
                    Some(item) => item.expiry_ms = expiry_ms,
                    None => return assert_eq!(reply.unwrap(), Reply::Miss),
                }
                assert_eq!(reply.unwrap(), Reply::Touched);
                assert_eq!(self.check(at, false), cas, "touch keeps the token");
            }
            Step::Arith(at, arith, initial) => {
                self.check(at, evicts);
                self.arith(at, arith, initial);
            }
            Step::Advance(ms) => {
                self.clock.advance(Duration::from_millis(ms.into()));
                self.now_ms += u64::from(ms);
            }
            Step::Reclaim => _ = self.store.reclaim_expired(),
        }
    }
}

fn full(reply: &Result<Reply, Error>) -> bool {
    reply.as_ref().is_err_and(|error| error.kind() == ErrorKind::Full && !error.is_unknown())
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn does_what_a_plain_map_does(steps in prop::collection::vec(step(), 1..150)) {
        let mut pair = Pair::new(None, false);
        for step in steps {
            pair.step(step, false);
        }
        for at in 0..6 {
            pair.check(at, false);
        }
        pair.store.reclaim_expired();
        pair.live(0);
        prop_assert_eq!(pair.store.stats().items, pair.plain.len());
    }

    #[test]
    fn a_full_store_refuses_and_keeps_what_it_has(steps in prop::collection::vec(step(), 1..150)) {
        let mut pair = Pair::new(Some(1_600), false);
        for step in steps {
            pair.step(step, false);
            prop_assert!(pair.store.stats().bytes <= 1_600);
            for at in 0..6 {
                pair.check(at, false);
            }
        }
    }

    #[test]
    fn a_full_cache_drops_items_and_never_lies(steps in prop::collection::vec(step(), 1..150)) {
        let mut pair = Pair::new(Some(1_600), true);
        for step in steps {
            pair.step(step, true);
            prop_assert!(pair.store.stats().bytes <= 1_600);
        }
        for at in 0..6 {
            pair.check(at, true);
        }
    }
}
