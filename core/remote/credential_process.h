// Runs the program that a profile of AWS names as credential_process.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace stfs {

/// Splits a command into words, as a shell does with quotes and backslashes. Nothing is expanded.
/// @return nothing: a quote does not end.
std::optional<std::vector<std::string>> command_words(std::string_view command);

/// Runs a program as this user, without a shell, and returns its standard output. The output may have
/// secrets, so no message repeats it. The program has the standard error of this process.
/// @param patience  then the program is killed.
/// @return ENOENT and others: the program can't be started. EACCES: the program failed. ETIMEDOUT. ECANCELED:
///   this process ends.
Result<std::string> output_of(const std::vector<std::string>& words, std::chrono::milliseconds patience);

}  // namespace stfs
