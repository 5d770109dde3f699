//! A process that may start no thread. Alone in its file: the limit is the whole process's.

use larder::{ErrorKind, blocking};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn a_runtime_that_gets_no_thread_is_refused_and_asked_for_again() {
    let before = getrlimit(Resource::As);
    // No room in the address space for another stack.
    setrlimit(Resource::As, Rlimit { current: Some(1 << 20), ..before }).unwrap();
    let refused = blocking::wait(async { Ok(()) });
    setrlimit(Resource::As, before).unwrap();
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("gave the background runtime no thread"), "{refused}");
    blocking::wait(async { Ok(()) }).expect("there is room again");
    let waits = blocking::wait(async {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        Ok(())
    });
    waits.expect("the runtime serves timers");
}
