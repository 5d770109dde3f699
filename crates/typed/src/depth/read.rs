//! The reading half: a deserializer that counts levels, and else hands on what is asked of it and what it answers.

use std::fmt::Formatter;

use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess, VariantAccess, Visitor};

use super::Levelled;

/// Methods for what holds nothing else. Also for what postcard does not read: a format that is asked for anything, and answers, would need its visitor wrapped.
macro_rules! passed {
    ($($name:ident),*) => {
        $(fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$name(visitor)
        })*
    };
}

/// Methods for what may hold something: its visitor counts.
macro_rules! counted {
    ($($name:ident($($arg:ident: $type:ty),*)),*) => {
        $(fn $name<V: Visitor<'de>>(self, $($arg: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$name($($arg,)* self.levels.of(visitor))
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Levelled<'_, D> {
    type Error = D::Error;

    passed!(deserialize_any, deserialize_ignored_any, deserialize_identifier, deserialize_bool, deserialize_char);
    passed!(deserialize_i8, deserialize_i16, deserialize_i32, deserialize_i64, deserialize_i128);
    passed!(deserialize_u8, deserialize_u16, deserialize_u32, deserialize_u64, deserialize_u128);
    passed!(deserialize_f32, deserialize_f64, deserialize_str, deserialize_string);
    passed!(deserialize_bytes, deserialize_byte_buf, deserialize_unit);

    fn deserialize_unit_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_unit_struct(name, visitor)
    }

    counted!(
        deserialize_option(),
        deserialize_seq(),
        deserialize_map(),
        deserialize_tuple(len: usize),
        deserialize_newtype_struct(name: &'static str),
        deserialize_tuple_struct(name: &'static str, len: usize),
        deserialize_struct(name: &'static str, fields: &'static [&'static str]),
        deserialize_enum(name: &'static str, variants: &'static [&'static str])
    );

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// Of an option, a list, a tuple, a map, a struct or an enum.
impl<'de, V: Visitor<'de>> Visitor<'de> for Levelled<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, something: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(self.levels.within(D::Error::custom)?.of(something))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, only: D) -> Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(self.levels.within(D::Error::custom)?.of(only))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, parts: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(self.levels.within(A::Error::custom)?.of(parts))
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(self.levels.within(A::Error::custom)?.of(entries))
    }

    /// No level yet: the variant may hold nothing.
    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(self.levels.of(variant))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Levelled<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, part: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(self.levels.of(part))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Levelled<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.inner.next_element_seed(self.levels.of(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Levelled<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.inner.next_key_seed(self.levels.of(seed))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.next_value_seed(self.levels.of(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, 'o, A: EnumAccess<'de>> EnumAccess<'de> for Levelled<'o, A> {
    type Error = A::Error;
    type Variant = Levelled<'o, A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        let (which, variant) = self.inner.variant_seed(self.levels.of(seed))?;
        Ok((which, self.levels.of(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Levelled<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.newtype_variant_seed(self.levels.within(A::Error::custom)?.of(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.inner.tuple_variant(len, self.levels.of(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.inner.struct_variant(fields, self.levels.of(visitor))
    }
}
