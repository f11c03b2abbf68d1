import numpy as np
import pytest

from broker_schemas.codec import DecodeError, Tensor, digest, pack, unpack


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"])
def test_tensors_travel_whole(dtype):
    array = np.arange(12).reshape(3, 4).astype(dtype)
    back = unpack(pack({"x": array}))["x"].numpy()
    assert back.dtype == array.dtype and np.array_equal(back, array)


def test_tensors_are_little_endian_and_c_ordered():
    assert Tensor.of(np.array([[1, 2], [3, 4]], dtype=">i2").T).data == b"\x01\x00\x03\x00\x02\x00\x04\x00"


def test_bfloat16_travels_as_bytes():
    tensor = unpack(pack(Tensor("bfloat16", (2,), b"\x80\x3f\x00\x40")))
    assert tensor.data == b"\x80\x3f\x00\x40"
    with pytest.raises(TypeError):
        tensor.numpy()


@pytest.mark.parametrize(
    "dtype, shape, data", [("float32", (2,), b"1234"), ("object", (1,), b"12345678"), ("int8", (-1,), b"")]
)
def test_a_tensor_that_cannot_be_is_refused(dtype, shape, data):
    with pytest.raises(DecodeError):
        Tensor(dtype, shape, data)


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x93\x01", b"\x80\x80"])
def test_bytes_of_something_else_are_refused(raw):
    with pytest.raises(DecodeError):
        unpack(raw)


def test_pickles_do_not_travel():
    with pytest.raises(TypeError):
        pack({"x": object()})


def test_a_digest_is_of_the_content():
    assert digest({"a": 1, "b": [np.ones(2)]}) == digest({"b": [np.ones(2)], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
