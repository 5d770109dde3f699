//! The fast counter: the server's own arithmetic on one key.
//!
//! Stored are decimal digits, the value plus 2^62: so far from both ends that the differences between servers (a floor at 0, a
//! wrap at 2^64, trouble from 2^63 on before memcached 1.6.22) cannot be met.

use std::sync::Arc;
use std::time::Duration;

use larder_core::{
    Arith, Batch, ClockRef, Ctx, Effect, Error, ErrorKind, Key, Op, PutMode, Reply, Result, StoreRef, Ttl, Want,
};

use crate::events;
use crate::manifest::{self, Manifest};
use crate::name::Name;
use crate::vigil::Vigil;

/// The version of the layout.
pub(super) const LAYOUT: u8 = 1;
/// What is added to the value before it is stored.
const BIAS: u64 = 1 << 62;
/// The values of a fast counter are at most this far from 0.
pub(super) const VALUE_MAX: i64 = 1 << 61;
/// The numbers added to a fast counter are at most this far from 0: 32 writers at once that all leave the range cannot reach
/// the ends of the server's arithmetic before they undo what they did.
pub(super) const DELTA_MAX: i64 = 1 << 56;

/// A fast counter, opened.
#[derive(Debug)]
pub(super) struct Fast {
    pub(super) store: StoreRef,
    pub(super) timeout: Duration,
    pub(super) vigil: Arc<Vigil>,
    name: Name,
    key: Key,
}

impl Fast {
    pub(super) fn new(
        store: StoreRef,
        name: Name,
        manifest: &Manifest,
        timeout: Duration,
        clock: ClockRef,
    ) -> Result<Fast> {
        let vigil = Vigil::new(&store, clock, &name, manifest)?;
        let key = manifest.data_key(&name, 0)?;
        Ok(Fast { store, timeout, vigil, name, key })
    }

    pub(super) fn create_ops(&self) -> Batch {
        Batch::from_buf([Op::put(self.key.clone(), PutMode::Add, BIAS.to_string(), Ttl::Never)])
    }

    pub(super) async fn add(&self, delta: i64) -> Result<()> {
        if delta.unsigned_abs() > DELTA_MAX.unsigned_abs() {
            let detail = format!("{delta} is too much for one add to a fast counter; the limit is ±{DELTA_MAX} (2^56)");
            return Err(Error::new(ErrorKind::BadInput, detail).key(&self.key));
        }
        let ctx = Ctx::within(self.timeout);
        let value = self.shift(ctx, i128::from(delta)).await?;
        if value.abs() <= i128::from(VALUE_MAX) {
            return Ok(());
        }
        let detail = format!("adding {delta} makes {value}; a fast counter holds ±{VALUE_MAX} (2^61)");
        match self.shift(ctx, -i128::from(delta)).await {
            Ok(_) => Err(Error::new(ErrorKind::Overflow, format!("{detail}; nothing is added")).key(&self.key)),
            Err(error) => {
                let detail = format!("{detail}, and taking it back failed: {}", error.detail());
                Err(Error::new(ErrorKind::Overflow, detail).key(&self.key).effect(Effect::Unknown).source(error))
            }
        }
    }

    pub(super) async fn get(&self) -> Result<i128> {
        let ctx = Ctx::within(self.timeout);
        let reply = self.run_one(ctx, Op::get(self.key.clone(), Want::VALUE)).await?;
        let Some(item) = reply.into_item() else { return Err(self.lost(ctx).await) };
        // Servers leave the blanks of a longer number behind a shorter one.
        let digits =
            std::str::from_utf8(&item.value).ok().and_then(|text| text.trim_end_matches(' ').parse::<u64>().ok());
        digits.map(unbiased).ok_or_else(|| {
            let shown = larder_core::text::Shown(&item.value);
            Error::new(ErrorKind::LayoutMismatch, format!("this is no number: {shown}")).key(&self.key)
        })
    }

    /// Takes away what was read: so what resets return and what remains add up to what was added.
    pub(super) async fn reset(&self) -> Result<i128> {
        let value = self.get().await?;
        if value != 0 {
            self.shift(Ctx::within(self.timeout), -value).await?;
        }
        Ok(value)
    }

    /// Adds, and tells the value after it.
    async fn shift(&self, ctx: Ctx, delta: i128) -> Result<i128> {
        let amount = u64::try_from(delta.unsigned_abs()).unwrap_or(u64::MAX);
        let arith = if delta < 0 { Arith::Decr(amount) } else { Arith::Incr(amount) };
        let op = Op::arith(self.key.clone(), arith);
        match self.run_one(ctx, op.clone()).await? {
            Reply::Number(number) => Ok(unbiased(number)),
            Reply::Miss => Err(self.lost(ctx).await),
            other => Err(manifest::unexpected(&op, &other)),
        }
    }

    async fn run_one(&self, ctx: Ctx, op: Op) -> Result<Reply> {
        let mut replies = self.vigil.run(ctx, Batch::from_buf([op])).await;
        replies.pop().unwrap_or_else(|| Err(larder_core::ext::no_reply()))
    }

    async fn lost(&self, ctx: Ctx) -> Error {
        let why = match manifest::find(&self.store, ctx, &self.name).await {
            Ok(Some(found)) if manifest_key_is(&found.manifest, &self.name, &self.key) => {
                "evicted, or its server was restarted"
            }
            Ok(Some(_)) => "the counter was dropped and made again; open it anew",
            Ok(None) => "the manifest is gone too: the counter was dropped, or its server was restarted",
            Err(_) => "the manifest cannot be read either",
        };
        let detail = format!("the number of fast counter {} is gone ({why})", self.name);
        let error = Error::new(ErrorKind::Lost, detail).key(&self.key).store(self.store.profile().store.clone());
        events::loss(self.vigil.subject(), error)
    }
}

fn manifest_key_is(manifest: &Manifest, name: &Name, key: &Key) -> bool {
    manifest.data_key(name, 0).is_ok_and(|other| other == *key)
}

fn unbiased(number: u64) -> i128 {
    i128::from(number) - i128::from(BIAS)
}
