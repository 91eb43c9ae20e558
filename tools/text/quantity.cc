#include "tools/text/quantity.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <cmath>
#include <limits>

namespace stfs::tools {

std::string human_size(std::uint64_t size_bytes) {
  constexpr std::array<const char*, 7> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (size_bytes < 1024) return fmt::format("{} B", size_bytes);
  auto size = static_cast<double>(size_bytes);
  std::size_t unit = 0;
  // The loop ends at 1023.95, because {:.1f} prints that value as 1024.0.
  for (; size >= 1023.95 && unit + 1 < kUnits.size(); ++unit) size /= 1024;
  return fmt::format("{:.1f} {}", size, kUnits[unit]);
}

std::string grouped(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

std::string counted(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", grouped(count), noun, count == 1 ? "" : "s");
}

std::string human_count(std::uint64_t number) {
  constexpr std::array<const char*, 3> kUnits = {"million", "billion", "trillion"};
  if (number < 1'000'000) return {};
  auto count = static_cast<double>(number) / 1e6;
  std::size_t unit = 0;
  for (; count >= 999.995 && unit + 1 < kUnits.size(); ++unit) count /= 1000;
  return fmt::format("{:.2f} {}", count, kUnits[unit]);
}

std::string human_duration(std::chrono::seconds duration) {
  constexpr std::int64_t kMinute = 60;
  constexpr std::int64_t kHour = 60 * kMinute;
  const std::int64_t seconds = duration.count();
  if (seconds < 2 * kMinute) return fmt::format("{} s", seconds);
  if (seconds < 2 * kHour) return fmt::format("{} min", seconds / kMinute);
  return fmt::format("{} h", seconds / kHour);
}

std::optional<std::uint64_t> parse_size(std::string_view text) {
  // No strtod: it accepts signs, hexadecimal, "inf" and the locale's decimal point.
  std::size_t at = 0;
  double number = 0;
  double place = 1;
  bool fraction = false;
  std::size_t digits = 0;
  for (; at < text.size(); ++at) {
    if (std::isdigit(static_cast<unsigned char>(text[at])) != 0) {
      if (fraction) place /= 10;
      number = fraction ? number + (text[at] - '0') * place : number * 10 + (text[at] - '0');
      ++digits;
    } else if (text[at] == '.' && !fraction) {
      fraction = true;
    } else {
      break;
    }
  }
  if (digits == 0) return std::nullopt;
  std::string_view unit = text.substr(at);
  if (!unit.empty()) {
    constexpr std::string_view kPrefixes = "KMGTP";
    const std::size_t power = kPrefixes.find(static_cast<char>(std::toupper(unit.front())));
    if (power != std::string_view::npos) unit.remove_prefix(1);
    const double base = power != std::string_view::npos && unit == "B" ? 1000 : 1024;
    if (!unit.empty() && unit != "B" && (unit != "iB" || power == std::string_view::npos))
      return std::nullopt;
    if (power != std::string_view::npos) number *= std::pow(base, static_cast<double>(power + 1));
  }
  if (number >= 9.2e18) return std::nullopt;
  return static_cast<std::uint64_t>(std::llround(number));
}

}  // namespace stfs::tools
