/* Counts the calls of Python and C functions that the interpreter's profiler reports, of one thread at a time. */
#include <Python.h>

static long calls;

static int note(PyObject *object, PyFrameObject *frame, int event, PyObject *argument) {
  calls += event == PyTrace_CALL || event == PyTrace_C_CALL;
  return 0;
}

long counted(void) { return calls; }

void count(void) { PyEval_SetProfile(note, NULL); }

void rest(void) { PyEval_SetProfile(NULL, NULL); }
