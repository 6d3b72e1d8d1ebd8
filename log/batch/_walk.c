/* Walks the records of a batch, without an object for any: whether each is what the record format says (`walk`), and where its
   parts lie (`locate`).

   `walk.py` and `spans.py` of plain batches are the same in plain Python, the meaning of this file, and what runs where no C
   compiler was at hand. Every byte is read only after its position was compared with the end; nothing is allocated, and what is
   written is written into columns whose room was compared with the number of records. */

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

typedef struct {
    int64_t *offsets, *timestamps, *key_starts, *value_starts, *header_starts;
    int32_t *key_sizes, *value_sizes, *header_counts;
} Columns;

typedef struct {
    int64_t start, end, count, base_offset, last_delta, base_timestamp, is_append_time, append_time;
} Section;

/* Read the size of bytes that may be null and skip them; tell where they begin. */
static const uint8_t *find_bytes(const uint8_t *at, const uint8_t *end, const uint8_t *data, int64_t *start, int32_t *size)
{
    int64_t found;
    at = read_int(at, end, &found);
    if (at == NULL || found < -1 || found > end - at)
        return NULL;
    *start = at - data;
    *size = (int32_t)found;
    return found > 0 ? at + found : at;
}

/* Write where the parts of a record lie into a row; return its offset delta, -1 for what is no record. */
static int64_t locate_record(const uint8_t *at, const uint8_t *end, const uint8_t *data, const Section *in, int64_t previous,
                             int64_t row, const Columns *out)
{
    int64_t delta, delta_ms, timestamp, headers, size;
    if (end - at < 6)
        return -1;
    at = read_long(at + 1, end, &delta_ms);
    if (at == NULL || __builtin_add_overflow(in->base_timestamp, delta_ms, &timestamp))
        return -1;
    at = read_int(at, end, &delta);
    if (at == NULL || delta <= previous || delta > in->last_delta)
        return -1;
    at = find_bytes(at, end, data, &out->key_starts[row], &out->key_sizes[row]);
    if (at == NULL)
        return -1;
    at = find_bytes(at, end, data, &out->value_starts[row], &out->value_sizes[row]);
    if (at == NULL)
        return -1;
    at = read_int(at, end, &headers);
    if (at == NULL || headers < 0 || headers > (end - at) / 2)
        return -1;
    out->header_starts[row] = at - data;
    out->header_counts[row] = (int32_t)headers;
    for (; headers > 0; headers--) {
        at = skip_bytes(at, end, 0, &size);
        if (at == NULL)
            return -1;
        at = skip_bytes(at, end, -1, &size);
        if (at == NULL)
            return -1;
    }
    if (at != end)
        return -1;
    out->offsets[row] = (int64_t)((uint64_t)in->base_offset + (uint64_t)delta);
    out->timestamps[row] = in->is_append_time ? in->append_time : timestamp;
    return delta;
}

/* Return the number of rows written, -1 where something is no record. */
static int64_t locate_section(const uint8_t *data, const Section *in, int64_t from_offset, int64_t row, const Columns *out)
{
    const uint8_t *at = data + in->start, *end = data + in->end;
    int64_t previous = -1;
    for (int64_t record = 0; record < in->count; record++) {
        int64_t size;
        at = read_int(at, end, &size);
        if (at == NULL || size < 0 || size > end - at)
            return -1;
        previous = locate_record(at, at + size, data, in, previous, row, out);
        if (previous < 0)
            return -1;
        at += size;
        row += out->offsets[row] >= from_offset;
    }
    return at == end ? row : -1;
}

/* Whether the sections lie in the data, and the columns have room for their records. */
static int has_room(const Section *sections, Py_ssize_t count, int64_t size, const Py_buffer *columns)
{
    int64_t room = INT64_MAX, records = 0;
    for (int i = 0; i < 8; i++) {
        int64_t each = columns[i].len / (i == 3 || i == 5 || i == 7 ? 4 : 8);
        room = each < room ? each : room;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        const Section *each = &sections[i];
        if (each->start < 0 || each->end < each->start || each->end > size || each->count < 0 || each->count > INT32_MAX)
            return 0;
        records += each->count;
    }
    return records <= room;
}

static PyObject *locate(PyObject *module, PyObject *args)
{
    Py_buffer data, table, columns[8];
    long long from_offset;
    if (!PyArg_ParseTuple(args, "y*y*Lw*w*w*w*w*w*w*w*", &data, &table, &from_offset, &columns[0], &columns[1], &columns[2],
                          &columns[3], &columns[4], &columns[5], &columns[6], &columns[7]))
        return NULL;
    const Section *sections = table.buf;
    Py_ssize_t count = table.len / (Py_ssize_t)sizeof(Section);
    const Columns out = {columns[0].buf, columns[1].buf, columns[2].buf, columns[4].buf, columns[6].buf,
                         columns[3].buf, columns[5].buf, columns[7].buf};
    int64_t rows = has_room(sections, count, data.len, columns) ? 0 : -1;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count && rows >= 0; i++)
        rows = locate_section(data.buf, &sections[i], from_offset, rows, &out);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    PyBuffer_Release(&table);
    for (int i = 0; i < 8; i++)
        PyBuffer_Release(&columns[i]);
    return PyLong_FromLongLong(rows);
}

static PyMethodDef methods[] = {
    {"walk", walk, METH_VARARGS, "As `walk.walk_in_python`."},
    {"locate", locate, METH_VARARGS, "Write where the parts of records lie; return the rows written, -1 for what is no record."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_walk", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__walk(void)
{
    return PyModuleDef_Init(&definition);
}
