//! What the servers say of their memory and their work, and how large each item is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use larder_core::survey::{CommandTimes, DataType, Hot, Pace, Seen, SlabClass, Survey, Surveying, Told, Vitals};
use larder_core::{Ctx, Error, ErrorKind, Result};
use larder_net::all_of;
use larder_proto::Abilities;
use larder_proto::metadump::{details, unescaped};
use tokio::time::Instant;

use crate::MemcachedStore;
use crate::list::items;
use crate::node::Node;
use crate::probe::Exchange;

/// Items between two words of progress, and two pauses.
const PIECE: u64 = 1_000;
/// What is asked of a server about itself.
const TOPICS: [&str; 4] = ["", "settings", "slabs", "items"];
/// What is asked of Larder's own server beside.
const OUR_TOPICS: [&str; 2] = ["latency", "hot"];

/// The server's listing on a connection of its own, as for a list; a pause is made by not reading, and the crawler waits, as does the growth of the server's hash table. Its lines tell all there is to an item, so that
/// nothing is left to measure. What is set apart for an item is the chunk of its slab class. **Round trips: 2** a server, each after a handshake; 3 where it is empty, or its table grows just then.
impl Survey for MemcachedStore {
    fn vitals(&self, ctx: Ctx) -> Surveying<'_, Vec<Result<Vitals>>> {
        Box::pin(async move {
            let limit = ctx.at_most(self.timeout()).deadline.map(Instant::from_std);
            // All at once: one that does not answer is not to make the others late.
            let ask =
                async |node: &Arc<Node>| by(limit, vitals(node)).await.map_err(|error| error.store(&node.server.name));
            all_of(self.nodes().iter().map(|node| Box::pin(ask(node))).collect()).await
        })
    }

    fn walk<'a>(
        &'a self,
        ctx: Ctx,
        pace: Pace,
        tell: &'a mut (dyn FnMut(Told<'_>) + Send),
    ) -> Surveying<'a, Result<()>> {
        Box::pin(async move {
            let mut walk = Walk { pace, tell, looked_at: 0, piece_begun: Instant::now() };
            for node in self.nodes() {
                let walked = by(ctx.deadline.map(Instant::from_std), walk.node(node)).await;
                walked.map_err(|error| error.store(&node.server.name))?;
            }
            (walk.tell)(Told::LookedAt(walk.looked_at));
            Ok(())
        })
    }
}

/// The same, until a deadline.
async fn by<T>(deadline: Option<Instant>, work: impl Future<Output = Result<T>>) -> Result<T> {
    let Some(deadline) = deadline else { return work.await };
    let late = |_| Err(Error::new(ErrorKind::Timeout, "the deadline came before the server had told all"));
    tokio::time::timeout_at(deadline, work).await.unwrap_or_else(late)
}

/// A walk over all servers.
struct Walk<'a> {
    pace: Pace,
    tell: &'a mut (dyn FnMut(Told<'_>) + Send),
    looked_at: u64,
    piece_begun: Instant,
}

impl Walk<'_> {
    async fn node(&mut self, node: &Node) -> Result<()> {
        let mut exchange = node.exchange().await?;
        let slabs = exchange.stat_lines("slabs").await?;
        let chunks: BTreeMap<u32, u64> =
            classes(&slabs, &[]).into_iter().map(|class| (class.id, class.chunk_bytes)).collect();
        self.piece_begun = Instant::now();
        items(node, &mut |key, line| {
            self.item(key, line, &chunks);
            if !self.looked_at.is_multiple_of(PIECE) {
                return Duration::ZERO;
            }
            (self.tell)(Told::LookedAt(self.looked_at));
            // Lines come of themselves: what they took says nothing of how busy the server is, only how long was not waited yet.
            let pause = self.pace.pause(PIECE as usize, Duration::ZERO).saturating_sub(self.piece_begun.elapsed());
            self.piece_begun = Instant::now() + pause;
            pause
        })
        .await
    }

    fn item(&mut self, key: &[u8], line: &[u8], chunks: &BTreeMap<u32, u64>) {
        let details = details(line);
        // A server without slabs has one class, of no chunks.
        let chunk = details.class.and_then(|class| chunks.get(&class)).copied().filter(|&bytes| bytes > 0);
        // An item that is larger than the largest chunk is cut into several; the last one fits what is left.
        let is_cut = details.size.zip(chunk).is_some_and(|(size, chunk)| size > chunk);
        (self.tell)(Told::Key(Seen {
            key,
            data_type: DataType::Item,
            encoding: if is_cut { "chunked" } else { "item" },
            bytes: details.size,
            resident_bytes: chunk.max(details.size),
            value_bytes: details
                .size
                .map(|size| size.saturating_sub((Abilities::ITEM_OVERHEAD_BYTES + key.len()) as u64)),
            expires: details.expires,
        }));
        self.looked_at += 1;
    }
}

/// Asks a server, on a connection that is kept for the next time.
async fn vitals(node: &Node) -> Result<Vitals> {
    let mut kept = node.questions.lock().await;
    // Taken out: one that is not answered in full, or given up on, is not used again.
    let answers = match kept.take() {
        Some(exchange) => ask(exchange).await.ok(),
        None => None,
    };
    let (exchange, answers) = match answers {
        Some(answers) => answers,
        // The first time, or the server has closed it since.
        None => ask(node.exchange().await?).await?,
    };
    *kept = Some(exchange);
    let software = match (of(&answers[1], "larder_version"), of(&answers[0], "version")) {
        (Some(ours), _) => format!("larder {ours}"),
        (None, version) => format!("memcached {}", version.unwrap_or_default()),
    };
    Ok(understood(Vitals::of(&node.server.name, software.trim_end()), &answers))
}

type Lines = Vec<(String, String)>;

async fn ask(mut exchange: Exchange) -> Result<(Exchange, Vec<Lines>)> {
    let mut answers = Vec::with_capacity(TOPICS.len());
    for topic in TOPICS {
        answers.push(exchange.stat_lines(topic).await?);
    }
    if of(&answers[1], "larder_version").is_some() {
        for topic in OUR_TOPICS {
            answers.push(exchange.stat_lines(topic).await?);
        }
    }
    Ok((exchange, answers))
}

/// The value of a name.
fn of<'a>(lines: &'a Lines, name: &str) -> Option<&'a str> {
    lines.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// What the answers to [`TOPICS`], and to [`OUR_TOPICS`] where there are any, say.
fn understood(mut vitals: Vitals, answers: &[Lines]) -> Vitals {
    let [general, settings, slabs, items, ours @ ..] = answers else { return vitals };
    if let [latency, hot] = ours {
        vitals.commands = ["read", "write", "other"].iter().filter_map(|class| times(latency, class)).collect();
        vitals.hot = hot.iter().filter_map(|(count, rest)| hot_key(count, rest)).collect();
    }
    vitals.told = general.iter().cloned().collect();
    vitals.settings = settings.iter().cloned().collect();
    let malloced = of(slabs, "total_malloced").and_then(|bytes| bytes.parse().ok());
    vitals.classes = classes(slabs, items);
    let number = |name: &str| vitals.number(name);
    let sum = |names: &[&str]| names.iter().filter_map(|name| number(name)).reduce(|sum, more| sum + more);
    let counted = ["cmd_get", "cmd_set", "cmd_touch", "delete_hits", "delete_misses"];
    let arithmetic = ["incr_hits", "incr_misses", "decr_hits", "decr_misses"];
    let ops = sum(&[&counted[..], &arithmetic].concat());
    let seconds = |name: &str| vitals.told.get(name).and_then(|seconds| seconds.parse::<f64>().ok());
    let cpu_us =
        seconds("rusage_user").zip(seconds("rusage_system")).map(|(user, system)| ((user + system) * 1e6) as u64);
    let (used, hash, items) = (number("bytes"), number("hash_bytes").unwrap_or(0), number("curr_items"));
    let (limit, uptime_s, connections) = (number("limit_maxbytes"), number("uptime"), number("curr_connections"));
    let (hits, misses) = (number("get_hits"), number("get_misses"));
    let (evicted, expired) = (number("evictions"), number("reclaimed"));
    let (in_bytes, out_bytes) = (number("bytes_read"), number("bytes_written"));
    let held: Option<u64> = malloced.map(|bytes: u64| bytes.saturating_add(hash));
    let resident = number("resident_bytes").or(held);
    vitals.resident_ratio = held.zip(used.filter(|&used| used > 0)).map(|(all, used)| all as f64 / used as f64);
    (vitals.used_bytes, vitals.data_bytes, vitals.resident_bytes) = (used, used, resident);
    (vitals.limit_bytes, vitals.items, vitals.uptime_s) = (limit.filter(|&limit| limit > 0), items, uptime_s);
    (vitals.connections, vitals.ops, vitals.hits, vitals.misses) = (connections, ops, hits, misses);
    (vitals.evicted, vitals.expired, vitals.cpu_us) = (evicted, expired, cpu_us);
    (vitals.in_bytes, vitals.out_bytes) = (in_bytes, out_bytes);
    if is_in_folder(&vitals) {
        vitals.disk_bytes = vitals.used_bytes.take();
        // Releases before told -m, which limits nothing there; and none of what is resident is of the data alone.
        (vitals.data_bytes, vitals.limit_bytes, vitals.resident_ratio) = (None, None, None);
    }
    vitals
}

/// True of our server over a folder, whose bytes are those of its files: what it keeps outlives its process.
fn is_in_folder(vitals: &Vitals) -> bool {
    let setting = |name: &str| vitals.settings.get(name).map(String::as_str);
    setting("larder_version").is_some() && matches!(setting("durability"), Some("disk" | "recent"))
}

/// How long requests of a class took, as our server tells.
fn times(latency: &Lines, class: &str) -> Option<CommandTimes> {
    let number = |what: &str| of(latency, &format!("{class}:{what}")).and_then(|value| value.parse::<f64>().ok());
    let (calls, total_us) = (number("count")? as u64, number("sum_us")?);
    Some(CommandTimes { name: class.to_owned(), calls, total_us, p50_us: number("p50_us"), p99_us: number("p99_us") })
}

/// A line of `stats hot`, behind its first word: the count, by how much that may be too high, and the key.
fn hot_key(count: &str, rest: &str) -> Option<Hot> {
    let (over, key) = rest.split_once(' ')?;
    Some(Hot { key: unescaped(key.as_bytes()), count: count.parse().ok()?, over: over.parse().ok()? })
}

/// The slab classes, by `stats slabs` (`<class>:chunk_size` …) and `stats items` (`items:<class>:evicted`).
fn classes(slabs: &[(String, String)], items: &[(String, String)]) -> Vec<SlabClass> {
    let mut classes: BTreeMap<u32, SlabClass> = BTreeMap::new();
    for (name, value) in slabs {
        let Some((id, what)) = name.split_once(':') else { continue };
        let (Ok(id), Ok(value)) = (id.parse::<u32>(), value.parse::<u64>()) else { continue };
        let class = classes.entry(id).or_insert_with(|| SlabClass { id, ..SlabClass::default() });
        match what {
            "chunk_size" => class.chunk_bytes = value,
            "total_pages" => class.pages = value,
            "chunks_per_page" => class.page_chunks = value,
            "used_chunks" => class.used_chunks = value,
            _ => {}
        }
    }
    for (name, value) in items {
        let mut words = name.split(':').skip(1);
        let (Some(id), Some("evicted")) = (words.next().and_then(|id| id.parse::<u32>().ok()), words.next()) else {
            continue;
        };
        if let (Some(class), Ok(evicted)) = (classes.get_mut(&id), value.parse()) {
            class.evicted = evicted;
        }
    }
    classes.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Lines {
        let pair = |line: &str| line.split_once(' ').map(|(name, value)| (name.to_owned(), value.to_owned()));
        text.lines().filter_map(pair).collect()
    }

    #[test]
    fn slab_classes_are_put_together() {
        let slabs = lines(
            "1:chunk_size 96\n1:chunks_per_page 10922\n1:total_pages 2\n1:used_chunks 7\n12:chunk_size 1184\nactive_slabs 2\ntotal_malloced 2097152",
        );
        let items = lines("items:1:number 7\nitems:1:evicted 3\nitems:99:evicted 3");
        let classes = classes(&slabs, &items);
        let first = SlabClass { id: 1, chunk_bytes: 96, pages: 2, page_chunks: 10_922, used_chunks: 7, evicted: 3 };
        assert_eq!(classes, [first, SlabClass { id: 12, chunk_bytes: 1_184, ..SlabClass::default() }]);
        let general = lines("bytes 1048576\ncmd_get 5\ncmd_set 2\nrusage_user 0.25\nrusage_system 0.5");
        let vitals =
            understood(Vitals::of("here", "memcached"), &[general, lines("item_size_max 1048576"), slabs, items]);
        assert_eq!((vitals.ops, vitals.cpu_us, vitals.resident_ratio), (Some(7), Some(750_000), Some(2.0)));
        assert_eq!(vitals.settings["item_size_max"], "1048576");
        let ours = [lines("read:count 4\nread:sum_us 10\nread:p50_us 0.5"), lines("640 64 a%20b")];
        let told = [vec![Lines::new(); 4], ours.to_vec()].concat();
        let vitals = understood(Vitals::of("here", "larder"), &told);
        assert_eq!((vitals.commands[0].mean_us(), vitals.commands[0].p99_us), (Some(2.5), None));
        assert_eq!(vitals.hot, [Hot { key: b"a b".to_vec(), count: 640, over: 64 }]);
        for (durability, used, disk, limit) in
            [("process", Some(9), None, Some(64)), ("disk", None, Some(9), None), ("recent", None, Some(9), None)]
        {
            let general = lines("bytes 9\nlimit_maxbytes 64\nresident_bytes 20");
            let settings = lines(&format!("larder_version 0.1.0\ndurability {durability}"));
            let answers = [general, settings, lines("total_malloced 9"), Lines::new()];
            let vitals = understood(Vitals::of("here", "larder"), &answers);
            assert_eq!((vitals.used_bytes, vitals.data_bytes, vitals.disk_bytes), (used, used, disk), "{durability}");
            assert_eq!((vitals.limit_bytes, vitals.resident_bytes), (limit, Some(20)), "{durability}");
            assert_eq!(vitals.resident_ratio.is_some(), used.is_some(), "{durability}");
        }
        assert_eq!(
            understood(Vitals::of("here", "x"), &[Lines::new(), Lines::new(), Lines::new(), Lines::new()]).ops,
            None
        );
    }
}
