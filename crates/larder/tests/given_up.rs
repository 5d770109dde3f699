//! A store that is not opened in time by whoever opens it.

use std::sync::mpsc;
use std::time::Duration;

/// The wait for another process ends with it, and holds up neither its runtime nor whoever opens the folder next.
#[test]
fn an_open_that_is_given_up_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file:{}", folder.path().display());
    let holder = larder::durable_options(&url).unwrap().open().unwrap();
    for share in ["no", "yes"] {
        let waiting = format!("{url}?wait_ms=3600000&share={share}");
        let (ended, is_ended) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let opened = runtime.block_on(async {
                tokio::time::timeout(Duration::from_millis(50), larder::open(&waiting)).await.map(drop)
            });
            assert!(opened.is_err(), "somebody has it open");
            drop(runtime);
            ended.send(()).unwrap();
        });
        is_ended.recv_timeout(Duration::from_secs(30)).expect("the runtime ends");
    }
    drop(holder);
    larder::durable_options(&url).unwrap().open().unwrap();
}
