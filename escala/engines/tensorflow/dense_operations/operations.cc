// All operations, in one library.
#include "rmsprop.h"
