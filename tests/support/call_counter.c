/* Counts the calls of Python and C functions that the interpreter's profiler reports, of one thread at a time. */
#include <Python.h>

static long calls;
static int is_counting;

static int note(PyObject *object, PyFrameObject *frame, int event, PyObject *argument) {
  calls += event == PyTrace_CALL || event == PyTrace_C_CALL;
  return 0;
}

long counted(void) { return calls; }

void count(void) {
  PyEval_SetProfile(note, NULL);
  is_counting = 1;
}

void rest(void) {
  PyEval_SetProfile(NULL, NULL);
  is_counting = 0;
}

/* A clock that goes by the calls, of which it is one itself. */
double milliseconds(long calls_per_ms) { return (double)(calls += is_counting) / calls_per_ms; }
