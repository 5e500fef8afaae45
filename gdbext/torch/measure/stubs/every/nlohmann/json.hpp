#pragma once
#include <string>
namespace nlohmann {
struct json {
  template <class... A> json(A&&...) {}
  template <class K> json& operator[](K&&) { return *this; }
  template <class K> const json& operator[](K&&) const { return *this; }
  template <class T> T get() const { return T(); }
  template <class... A> std::string dump(A&&...) const { return {}; }
  template <class... A> static json parse(A&&...) { return json(); }
};
}
