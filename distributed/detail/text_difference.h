#pragma once

#include "distributed/detail/same_on_all_ranks.h"
