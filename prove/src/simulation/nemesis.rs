//! What befalls the server and the ways to it while the clients work.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::climate::Harm;
use super::net::Net;

/// The longest that a way is held up, the server stopped, or down.
const OUTAGE_MAX_MS: u64 = 8_000;
/// The most items that are evicted at once.
const EVICTED_MAX: usize = 4;

/// Lets things happen until the network is calm.
pub(super) async fn rage(net: Arc<Net>) {
    let mean_ms = net.climate.calm_for.as_millis() as u64;
    loop {
        let pause_ms = net.draw(|random| random.u64(1..=2 * mean_ms));
        sleep(Duration::from_millis(pause_ms)).await;
        if net.is_calm() {
            return;
        }
        befall(&net);
    }
}

fn befall(net: &Net) {
    let clients = net.climate.clients;
    let (event, client) = net.draw(|random| (random.u8(..10), random.usize(..clients)));
    let time = net.draw(|random| {
        let most_ms = [50, 500, OUTAGE_MAX_MS][random.usize(..3)];
        Duration::from_millis(random.u64(..most_ms))
    });
    match event {
        0 | 1 => {
            net.count("partition");
            net.hold(client, time);
        }
        2 => {
            net.count("connection reset");
            net.break_off(client);
        }
        3 => {
            net.count("server stopped");
            net.server.stop(time);
        }
        4 if net.climate.harm != Harm::Emptied => {
            net.count("server restarted");
            net.server.restart(time);
        }
        5 | 6 => harm(net, time),
        _ => {}
    }
}

fn harm(net: &Net, down: Duration) {
    let harm = match net.climate.harm {
        Harm::Any => net.draw(|random| [Harm::Evictions, Harm::Emptied, Harm::SetBack][random.usize(..3)]),
        harm => harm,
    };
    match harm {
        Harm::None | Harm::Any => {}
        Harm::Evictions => {
            let items = net.draw(|random| random.usize(1..=EVICTED_MAX));
            let evicted = net.draw(|random| random.fork());
            for _ in 0..net.server.evict(items, &mut evicted.clone()) {
                net.count("eviction");
            }
        }
        Harm::Emptied if net.draw(|random| random.bool()) => {
            net.count("flush");
            net.server.flush();
        }
        Harm::Emptied => {
            net.count("restart with nothing");
            net.server.restart_empty(down);
        }
        Harm::SetBack => {
            if net.server.set_back(down) {
                net.count("restart with older data");
            } else {
                net.server.keep();
            }
        }
    }
}
