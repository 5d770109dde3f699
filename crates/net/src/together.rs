//! Requests to several servers at once.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Waits for all of them at once; what comes of them is in their order.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let asked = [30, 10, 20].map(|ms| Box::pin(async move {
///     tokio::time::sleep(std::time::Duration::from_millis(ms)).await;
///     ms
/// }));
/// assert_eq!(larder_net::all_of(asked.into()).await, [30, 10, 20]);
/// # }
/// ```
pub async fn all_of<F: Future>(runs: Vec<Pin<Box<F>>>) -> Vec<F::Output> {
    let mut done: Vec<Option<F::Output>> = runs.iter().map(|_| None).collect();
    let mut open: Vec<_> = runs.into_iter().enumerate().collect();
    poll_fn(|cx| {
        open.retain_mut(|(at, run)| match run.as_mut().poll(cx) {
            Poll::Ready(output) => {
                done[*at] = Some(output);
                false
            }
            Poll::Pending => true,
        });
        if open.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}
