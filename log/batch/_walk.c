/* Walks the records of a batch: whether each of them is what the record format says, without an object for any.

   `walk.py` is the same in plain Python, the meaning of this file, and what runs where no C compiler was at hand. Every byte
   is read only after its position was compared with the end; nothing is allocated, nothing is written. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

enum { SOUND, EARLY, LENGTH, DELTA, TIMESTAMP, SIZE, HEADERS, TRAILING, ATTRIBUTES, NAME };

typedef struct {
    int64_t oldest, newest, null_keys, row;
} Findings;

/* Sections from this size on are walked without the interpreter's lock. */
#define WITHOUT_LOCK_BYTES (64 * 1024)

/* Read a zigzag varint of up to 64 bits before `end`; return where it ends, NULL if it does not or is too long. */
static const uint8_t *read_any(const uint8_t *at, const uint8_t *end, int64_t *value)
{
    uint64_t raw = 0;
    for (int shift = 0; shift < 70 && at < end; shift += 7) {
        uint64_t byte = *at++;
        if (shift == 63 && byte > 1)
            return NULL;
        raw |= (byte & 0x7F) << shift;
        if (byte < 0x80) {
            *value = (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1);
            return at;
        }
    }
    return NULL;
}

/* The same; nearly all numbers of a record have one byte or two, which are read on the spot. */
static inline const uint8_t *read_long(const uint8_t *at, const uint8_t *end, int64_t *value)
{
    if (end - at >= 2) {
        uint32_t first = at[0], second = at[1];
        uint32_t raw = first < 0x80 ? first : (first & 0x7F) | second << 7;
        if ((first & second) < 0x80) {
            *value = (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1);
            return at + 1 + (first >> 7);
        }
    }
    return read_any(at, end, value);
}

/* As `read_long`, for up to 32 bits, which take five bytes at most. */
static inline const uint8_t *read_int(const uint8_t *at, const uint8_t *end, int64_t *value)
{
    const uint8_t *after = read_long(at, end, value);
    if (after == NULL || after - at > 5 || *value < INT32_MIN || *value > INT32_MAX)
        return NULL;
    return after;
}

/* Read the size of bytes (from `least`, -1 is null) and skip them; return where they end, NULL if that is not before `end`. */
static inline const uint8_t *skip_bytes(const uint8_t *at, const uint8_t *end, int64_t least, int64_t *size)
{
    at = read_int(at, end, size);
    if (at == NULL || *size < least || *size > end - at)
        return NULL;
    return *size > 0 ? at + *size : at;
}

/* Whether the bytes are UTF-8: no overlong form, no surrogate, nothing above U+10FFFF (Unicode 15, table 3-7). */
static int is_utf8(const uint8_t *at, const uint8_t *end)
{
    while (at < end) {
        uint8_t first = *at++;
        if (first < 0x80)
            continue;
        int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
        if (first < 0xC2 || first > 0xF4 || end - at < more)
            return 0;
        uint8_t least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
        uint8_t most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
        if (*at < least || *at > most)
            return 0;
        for (at++, more--; more > 0; at++, more--) {
            if (*at < 0x80 || *at > 0xBF)
                return 0;
        }
    }
    return 1;
}

static inline int walk_record(const uint8_t *at, const uint8_t *end, int64_t base_timestamp, Findings *found)
{
    int64_t delta, timestamp, size, headers;
    if (end - at < 1)
        return EARLY;
    if (*at != 0)
        return ATTRIBUTES;
    at = read_long(at + 1, end, &delta);
    if (at == NULL)
        return EARLY;
    if (__builtin_add_overflow(base_timestamp, delta, &timestamp))
        return TIMESTAMP;
    at = read_int(at, end, &delta);
    if (at == NULL || delta != found->row)
        return DELTA;
    at = skip_bytes(at, end, -1, &size);
    if (at == NULL)
        return SIZE;
    found->null_keys += size < 0;
    at = skip_bytes(at, end, -1, &size);
    if (at == NULL)
        return SIZE;
    at = read_int(at, end, &headers);
    if (at == NULL || headers < 0 || headers > (end - at) / 2)
        return HEADERS;
    for (; headers > 0; headers--) {
        at = skip_bytes(at, end, 0, &size);
        if (at == NULL)
            return HEADERS;
        if (!is_utf8(at - size, at))
            return NAME;
        at = skip_bytes(at, end, -1, &size);
        if (at == NULL)
            return HEADERS;
    }
    if (at != end)
        return LENGTH;
    if (found->row == 0 || timestamp < found->oldest)
        found->oldest = timestamp;
    if (found->row == 0 || timestamp > found->newest)
        found->newest = timestamp;
    return SOUND;
}

static int walk_records(const uint8_t *at, const uint8_t *end, int64_t count, int64_t base_timestamp, Findings *found)
{
    for (found->row = 0; found->row < count; found->row++) {
        int64_t size;
        at = read_int(at, end, &size);
        if (at == NULL)
            return EARLY;
        if (size < 0 || size > end - at)
            return LENGTH;
        int problem = walk_record(at, at + size, base_timestamp, found);
        if (problem != SOUND)
            return problem;
        at += size;
    }
    return at == end ? SOUND : TRAILING;
}

static PyObject *walk(PyObject *module, PyObject *args)
{
    Py_buffer section;
    long long count, base_timestamp;
    if (!PyArg_ParseTuple(args, "y*LL", &section, &count, &base_timestamp))
        return NULL;
    Findings found = {0, 0, 0, 0};
    const uint8_t *begin = section.buf;
    int problem;
    if (section.len < WITHOUT_LOCK_BYTES) {
        problem = walk_records(begin, begin + section.len, count, base_timestamp, &found);
    } else {
        Py_BEGIN_ALLOW_THREADS
        problem = walk_records(begin, begin + section.len, count, base_timestamp, &found);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&section);
    return Py_BuildValue("iLLLL", problem, (long long)found.row, (long long)found.oldest, (long long)found.newest,
                         (long long)found.null_keys);
}

static PyMethodDef methods[] = {
    {"walk", walk, METH_VARARGS, "As `walk.walk_in_python`."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_walk", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__walk(void)
{
    return PyModuleDef_Init(&definition);
}
