//! Metadata values.

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `uint8`
    U8(u8),
    /// `int8`
    I8(i8),
    /// `uint16`
    U16(u16),
    /// `int16`
    I16(i16),
    /// `uint32`
    U32(u32),
    /// `int32`
    I32(i32),
    /// `uint64`
    U64(u64),
    /// `int64`
    I64(i64),
    /// `float32`
    F32(f32),
    /// `float64`
    F64(f64),
    /// `bool`
    Bool(bool),
    /// `string`. GGUF strings need not be UTF-8 (token pieces may not be).
    String(Vec<u8>),
    /// `array`
    Array(Array),
}

/// A metadata array; all elements are of one type. Arrays of arrays are refused.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// `uint8`
    U8(Vec<u8>),
    /// `int8`
    I8(Vec<i8>),
    /// `uint16`
    U16(Vec<u16>),
    /// `int16`
    I16(Vec<i16>),
    /// `uint32`
    U32(Vec<u32>),
    /// `int32`
    I32(Vec<i32>),
    /// `uint64`
    U64(Vec<u64>),
    /// `int64`
    I64(Vec<i64>),
    /// `float32`
    F32(Vec<f32>),
    /// `float64`
    F64(Vec<f64>),
    /// `bool`
    Bool(Vec<bool>),
    /// `string`
    String(Vec<Vec<u8>>),
}
