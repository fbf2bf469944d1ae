/* Every attribute that the fake takes: of which descriptor, of which type, how many of them at most, and whether it must be set.
 * From the enumerations and descriptions of cudnn_graph.h, cuDNN 9.28.0. */
#ifndef FAKE_RULES_H
#define FAKE_RULES_H

#include "fake_cudnn.h"

enum { HANDLE_TYPE = 0, BOOLEAN = 2, INT64 = 3, FLOAT_TYPE = 4, DOUBLE_TYPE = 5, POINTER = 6, DESCRIPTOR = 15, INT32_TYPE = 23 };
enum { ENGINE = 2, CONFIG = 3, HEURISTICS = 4, PLAN = 5, CHOICE = 7, GRAPH = 15, PACK = 16, TENSOR = 17 };

struct rule { int kind, name, type, most, required; };
#define OPERATION(kind, alpha, a, b, c) \
    {kind, alpha, FLOAT_TYPE, 1, 1}, {kind, alpha + 1, FLOAT_TYPE, 1, 1}, {kind, alpha + 2, DESCRIPTOR, 1, 1}, \
    {kind, a, DESCRIPTOR, 1, 1}, {kind, b, DESCRIPTOR, 1, 1}, {kind, c, DESCRIPTOR, 1, 1}
static const struct rule rules[] = {
    {1, 100, 1, 1, 1}, {1, 101, 7, 1, 1}, {1, 102, INT64, 8, 1}, {1, 103, INT64, 8, 1}, {1, 104, INT64, 8, 1},
    {1, 105, INT64, 8, 1}, {1, 106, INT64, 1, 1},
    {ENGINE, 1300, DESCRIPTOR, 1, 1}, {ENGINE, 1301, INT64, 1, 1},
    {CONFIG, 300, DESCRIPTOR, 1, 1}, {CONFIG, 302, DESCRIPTOR, MOST_KNOBS, 0},
    {HEURISTICS, 200, 8, 1, 1}, {HEURISTICS, 201, DESCRIPTOR, 1, 1},
    {PLAN, 400, HANDLE_TYPE, 1, 1}, {PLAN, 401, DESCRIPTOR, 1, 1},
    {CHOICE, 600, 9, 1, 1}, {CHOICE, 601, INT64, 1, 1},
    OPERATION(10, 700, 703, 704, 705), OPERATION(12, 706, 709, 710, 711), OPERATION(11, 712, 715, 716, 717),
    {GRAPH, 800, HANDLE_TYPE, 1, 1}, {GRAPH, 801, DESCRIPTOR, 8, 1},
    {TENSOR, 900, INT64, 1, 1}, {TENSOR, 901, 1, 1, 1}, {TENSOR, 902, INT64, 8, 1}, {TENSOR, 903, INT64, 8, 1},
    {TENSOR, 906, INT64, 1, 1}, {TENSOR, 908, BOOLEAN, 1, 0},
    {PACK, 1000, INT64, 64, 1}, {PACK, 1001, POINTER, 64, 1}, {PACK, 1003, POINTER, 1, 0},
    {29, 2000, 27, 1, 1}, {29, 2001, 28, 1, 1}, {29, 2002, DESCRIPTOR, 1, 1}, {29, 2003, DESCRIPTOR, 1, 1},
    {29, 2004, DESCRIPTOR, 1, 1}, {29, 2005, DESCRIPTOR, 1, 1}, {29, 2006, DESCRIPTOR, 1, 1}, {29, 2007, DESCRIPTOR, 1, 0},
    {29, 2008, DESCRIPTOR, 1, 0}, {29, 2009, DESCRIPTOR, 1, 0}, {29, 2010, DESCRIPTOR, 1, 0}, {29, 2011, DESCRIPTOR, 1, 0},
    {29, 2012, DESCRIPTOR, 1, 0}, {29, 2013, DESCRIPTOR, 1, 1},
    {30, 2100, 27, 1, 1}, {30, 2101, DESCRIPTOR, 1, 1}, {30, 2102, DESCRIPTOR, 1, 1}, {30, 2103, DESCRIPTOR, 1, 1},
    {30, 2104, DESCRIPTOR, 1, 1}, {30, 2105, DESCRIPTOR, 1, 1}, {30, 2106, DESCRIPTOR, 1, 0}, {30, 2107, DESCRIPTOR, 1, 1},
    {30, 2108, DESCRIPTOR, 1, 1}, {30, 2109, DESCRIPTOR, 1, 1},
};
enum { RULES = sizeof rules / sizeof *rules };

#endif
