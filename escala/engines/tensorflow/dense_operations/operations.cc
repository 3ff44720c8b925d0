// All operations, in one library.
#include "input_gradient.h"
#include "rmsprop.h"
