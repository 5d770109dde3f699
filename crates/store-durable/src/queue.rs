//! What waits for the committer: a list behind a lock, which the committer takes whole.
//!
//! The committer says how many requests it waits for, and is woken once, by the one that makes them so many: waking it costs more than what most requests ask for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Semaphore, TryAcquireError};

/// What both ends share. Requests wait here, up to a number; whoever has more waits outside.
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    committer: Condvar,
    /// Places that are free. Closed when nobody takes requests any more.
    places: Semaphore,
}

struct State<T> {
    waiting: Vec<T>,
    /// The committer sleeps until so many wait; 0 while it is awake.
    wanted: usize,
    is_closed: bool,
}

/// The way in. When it is dropped the queue is closed.
pub(crate) struct Entrance<T>(Arc<Queue<T>>);

/// The way out, of one thread. When it is dropped nothing more is taken in, and what waits is dropped.
pub(crate) struct Requests<T>(Arc<Queue<T>>);

/// A queue with places for so many.
pub(crate) fn queue<T>(places: usize) -> (Entrance<T>, Requests<T>) {
    let state = State { waiting: Vec::new(), wanted: 0, is_closed: false };
    let places = Semaphore::new(places);
    let queue = Arc::new(Queue { state: Mutex::new(state), committer: Condvar::new(), places });
    (Entrance(queue.clone()), Requests(queue))
}

impl<T> Entrance<T> {
    /// For somebody who must not keep it open.
    pub(crate) fn queue(&self) -> Arc<Queue<T>> {
        self.0.clone()
    }
}

impl<T> std::ops::Deref for Entrance<T> {
    type Target = Queue<T>;

    fn deref(&self) -> &Queue<T> {
        &self.0
    }
}

impl<T> Drop for Entrance<T> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<T> Queue<T> {
    /// Puts a request behind the others, when there is a place; `false` once the queue is closed.
    pub(crate) async fn send(&self, request: T) -> bool {
        match self.places.acquire().await {
            Ok(place) => {
                place.forget();
                self.push(request)
            }
            Err(_) => false,
        }
    }

    /// The same, if there is a place now.
    pub(crate) fn try_send(&self, request: T) -> bool {
        match self.places.try_acquire() {
            Ok(place) => {
                place.forget();
                self.push(request)
            }
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => false,
        }
    }

    /// The same, and gives the request back where there is no place; at a closed queue it is dropped.
    pub(crate) fn try_push(&self, request: T) -> Option<T> {
        match self.places.try_acquire() {
            Ok(place) => {
                place.forget();
                self.push(request);
                None
            }
            Err(TryAcquireError::NoPermits) => Some(request),
            Err(TryAcquireError::Closed) => None,
        }
    }

    /// Takes nothing more in: the committer ends when it has done what waits.
    pub(crate) fn close(&self) {
        self.places.close();
        let mut state = self.state.lock();
        state.is_closed = true;
        drop(state);
        self.committer.notify_one();
    }

    fn push(&self, request: T) -> bool {
        let mut state = self.state.lock();
        if state.is_closed {
            return false;
        }
        state.waiting.push(request);
        let wakes = state.wanted > 0 && state.waiting.len() >= state.wanted;
        if wakes {
            state.wanted = 0;
        }
        drop(state);
        if wakes {
            self.committer.notify_one();
        }
        true
    }
}

impl<T> Requests<T> {
    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.0.state.lock().waiting.len()
    }

    /// Moves what waits into `taken`, which is empty: waits until there is something, and until there are `wanted` or `patience` is over. `false`
    /// when there is nothing, and will be nothing.
    pub(crate) fn take(&mut self, taken: &mut Vec<T>, wanted: usize, patience: Duration) -> bool {
        let mut state = self.0.state.lock();
        if state.waiting.len() < wanted && !state.is_closed && !patience.is_zero() {
            let deadline = Instant::now() + patience;
            state.wanted = wanted;
            while state.wanted > 0 && !state.is_closed {
                if self.0.committer.wait_until(&mut state, deadline).timed_out() {
                    break;
                }
            }
        }
        while state.waiting.is_empty() && !state.is_closed {
            state.wanted = 1;
            self.0.committer.wait(&mut state);
        }
        state.wanted = 0;
        std::mem::swap(&mut state.waiting, taken);
        drop(state);
        self.0.places.add_permits(taken.len());
        !taken.is_empty()
    }
}

impl<T> Drop for Requests<T> {
    fn drop(&mut self) {
        self.0.close();
        let left = std::mem::take(&mut self.0.state.lock().waiting);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn what_waits_is_taken_in_its_order() {
        let (queue, mut requests) = queue(8);
        assert!((0..5).all(|number| queue.try_send(number)));
        assert_eq!(requests.waiting(), 5);
        let mut taken = Vec::new();
        assert!(requests.take(&mut taken, 1, Duration::ZERO));
        assert_eq!(taken, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn one_who_waits_for_three_is_woken_by_the_third() {
        let (queue, mut requests) = queue(8);
        let taker = thread::spawn(move || {
            let mut taken = Vec::new();
            requests.take(&mut taken, 3, LONG).then_some(taken)
        });
        for number in 0..3 {
            assert!(!taker.is_finished());
            assert!(queue.try_send(number));
        }
        assert_eq!(taker.join().unwrap(), Some(vec![0, 1, 2]));
    }

    #[test]
    fn patience_ends_with_what_there_is_and_the_first_is_waited_for() {
        let (queue, mut requests) = queue(8);
        assert!(queue.try_send(7));
        let mut taken = Vec::new();
        assert!(requests.take(&mut taken, 3, Duration::from_millis(1)));
        assert_eq!(taken, [7]);
        taken.clear();
        let sender = thread::spawn(move || queue.try_send(8));
        assert!(requests.take(&mut taken, 3, Duration::from_millis(1)));
        assert_eq!((taken, sender.join().unwrap()), (vec![8], true));
    }

    #[tokio::test]
    async fn places_are_given_back_and_nobody_waits_at_a_closed_queue() {
        let (queue, mut requests) = queue(1);
        assert!(queue.send(0).await);
        assert!(!queue.try_send(1), "it is full");
        let mut taken = Vec::new();
        let (sent, was_taken) = tokio::join!(queue.send(1), async { requests.take(&mut taken, 1, Duration::ZERO) });
        assert!(sent && was_taken);
        queue.close();
        assert!(!queue.send(2).await);
        taken.clear();
        assert!(requests.take(&mut taken, 9, LONG), "what waited is still done");
        taken.clear();
        assert!(!requests.take(&mut taken, 9, LONG));
    }

    #[test]
    fn what_waits_is_dropped_with_the_one_who_takes() {
        let (queue, requests) = queue(8);
        let request = Arc::new(());
        assert!(queue.try_send(request.clone()));
        drop(requests);
        assert_eq!(Arc::strong_count(&request), 1);
        assert!(!queue.try_send(request));
    }
}
