#pragma once

#include <cstdint>
#include <string>
#include "core/train_context.h"
#include "hooks/logger_hook.h"

namespace duet {

// How numbers, records and models look to people. Private to hooks/.

std::string formatted(const char* format, double value);
std::string number_text(double value);               // four digits
std::string duration_text(double seconds);           // h:mm:ss
std::string of_total(int64_t value, int64_t total);  // "3/10"; "3" without a total

// From 1. An epoch that has just ended, with the next one not begun, is still the one to name.
int64_t shown_epoch(const TrainContext& context);

// Adds a value; a name that is taken gets "log." in front.
void put_value(LogValues& values, std::string name, LogValue value);
const LogValue* find_value(const LogValues& values, const std::string& name);

// "step 50/1000  epoch 1/2  lr 1.00e-01  loss 0.43  time 4.0 ms (data 2.0)  memory 120 MB  eta 0:01:00"
std::string train_line(const TrainContext& context, int64_t epoch, const LogValues& values);
// "val  step 50/1000  accuracy 0.9"
std::string metrics_line(const TrainContext& context, const std::string& kind);
// "[=====     ] 50/1000  epoch 1/2  loss 0.43  eta 0:01:00"
std::string progress_line(const TrainContext& context, const std::string& loss, double eta_seconds);

// Sizes of a model and of its top-level parts, for people:
//
//   model: 421642 parameters (1.6 MiB), 421642 trainable, 128 values in buffers
//     stem     Conv2d         320
//     head     Linear       1290  frozen
std::string model_summary(const Task& task);

}  // namespace duet
