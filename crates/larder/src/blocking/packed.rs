//! The twins of the packed structures.

use super::{twin, wait};
use crate::lookup::{Built, Found, LookupKey, Progress, Rows};
use crate::records::{Aggregate, Schema, Value};
use crate::{PackedTableStat, Result};

twin! {
    /// [`PackedRecords`](crate::PackedRecords) without async: a cheap clone. They are made with a schema, so by [`RecordsOptions`](crate::RecordsOptions) and [`wait`].
    PackedRecords();
    fn set(&self, id: u64, fields: &[(&str, Value)]) -> () = "it.set(7, &[(\"place\", \"US\".into()), (\"visits\", 3u64.into())])?;";
    fn set_many<'a>(&self, records: impl IntoIterator<Item = (u64, &'a [(&'a str, Value)])>) -> () = "let ca = [(\"place\", \"CA\".into())];\nit.set_many((0..100).map(|id| (id, &ca[..])))?;";
    fn get(&self, id: u64) -> Vec<Value> = "it.set(7, &[(\"visits\", 3u64.into())])?;\nassert_eq!(it.get(7)?[1], 3u64.into());";
    fn get_many(&self, ids: &[u64]) -> Vec<Vec<Value>> = "it.set(8, &[(\"visits\", 3u64.into())])?;\nassert_eq!(it.get_many(&[7, 8])?[0][1], 0u64.into());";
    fn highest(&self) -> Option<u64> = "assert_eq!(it.highest()?, None);";
    fn aggregate(&self, fields: &[&str]) -> Aggregate = "it.set(7, &[(\"place\", \"US\".into())])?;\nassert_eq!(it.aggregate(&[\"place\"])?.count(&[\"US\".into()]), 1);";
    fn aggregate_told(&self, fields: &[&str], told: &mut (dyn FnMut(u64, u64) + Send)) -> Aggregate = "it.aggregate_told(&[\"place\"], &mut |done, of| println!(\"{done} of {of} shards\"))?;";
    fn aggregate_ids(&self, fields: &[&str], ids: &[u64]) -> Aggregate = "it.set(7, &[(\"place\", \"US\".into())])?;\nassert_eq!(it.aggregate_ids(&[\"place\"], &[7, 8])?.count(&[\"US\".into()]), 1);";
}

impl PackedRecords {
    /// What the records hold. **Round trips: 0.**
    ///
    /// ```
    /// # fn schema(it: &larder::blocking::PackedRecords) {
    /// println!("{} bits a record", it.schema().bits());
    /// # }
    /// ```
    pub fn schema(&self) -> &Schema {
        self.0.schema()
    }
}

twin! {
    /// A [`PackedTable`](crate::PackedTable) without async: a cheap clone.
    PackedTable(open_or_create);
    fn get(&self, key: impl Into<LookupKey>) -> Option<Found> = "assert!(it.get(17u64)?.is_none());";
    fn get_many(&self, keys: &[LookupKey]) -> Vec<Option<Found>> = "assert_eq!(it.get_many(&[17u64.into(), 18u64.into()])?, [None, None]);";
    fn stat(&self) -> PackedTableStat = "assert_eq!(it.stat()?.rows, 0);";
    fn build(&self, rows: Rows) -> Built = "let mut rows = larder::lookup::Rows::new([\"city\"])?;\nrows.push_id(17u64, [\"Lund\"])?;\nit.build(rows)?;\nassert_eq!(it.get(17u64)?.unwrap().fields[0], \"Lund\");";
}

impl PackedTable {
    /// [`PackedTable::build_told`](crate::PackedTable::build_told), waited for. Round trips: as there.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// # let store = larder::blocking::open("memory:").unwrap();
    /// # let it = larder::blocking::PackedTable::open_or_create(&store, "name").unwrap();
    /// let mut rows = larder::lookup::Rows::new(["city"]).unwrap();
    /// rows.push_id(17u64, ["Lund"]).unwrap();
    /// it.build_told(rows, |progress| println!("{progress:?}")).unwrap();
    /// # }
    /// ```
    ///
    /// # Errors
    /// As there; [`Unsupported`](crate::ErrorKind::Unsupported) on a thread that runs async code.
    pub fn build_told(&self, rows: Rows, mut told: impl FnMut(Progress) + Send) -> Result<Built> {
        wait(self.0.build_told(rows, &mut told))
    }

    /// The names of the columns, of the version that this handle knows. A row that was found before may be of another one: it has [its own](Found::columns). **Round trips: 0.**
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// # let store = larder::blocking::open("memory:").unwrap();
    /// # let it = larder::blocking::PackedTable::open_or_create(&store, "name").unwrap();
    /// assert!(it.columns().is_empty());
    /// # }
    /// ```
    pub fn columns(&self) -> Vec<String> {
        self.0.columns()
    }
}
