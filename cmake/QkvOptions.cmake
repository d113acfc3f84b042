# Options, and the flags that every target of this project is compiled with.

set(QKV_LLAMA_DIR "" CACHE PATH "llama.cpp as tools/setup builds it: a folder with source/ and build/bin/")
set(QKV_LLAMA_PREFIX "" CACHE PATH "An installed llama.cpp to use instead of QKV_LLAMA_DIR")
set(QKV_SANITIZE "" CACHE STRING "Sanitizers, comma separated: address,undefined or thread")
option(QKV_FUZZ "Build the libFuzzer targets of fuzz/ (needs clang)" OFF)
option(QKV_WERROR "Treat warnings as errors" ON)
option(QKV_TESTS "Build tests" ON)
option(QKV_BENCH "Build benchmarks, where Google Benchmark is installed" ON)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# -ffp-contract=off everywhere, not only in quant: functions that quant's headers inline into other modules must give
# the same bits there.
add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wunused -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False positives on operator+ of std::string (GCC bug 105651) and on growing vectors of bytes (105329).
  add_compile_options(-Wno-restrict -Wno-stringop-overflow -Wno-array-bounds)
endif()
if(QKV_WERROR)
  add_compile_options(-Werror)
endif()
# No path of the build machine in binaries, and compiler cache hits from any checkout.
add_compile_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
endif()

if(QKV_SANITIZE)
  # Asserts stay on in sanitizer builds: they are checks too.
  string(REPLACE "-DNDEBUG" "" CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
  set(qkv_sanitize_flags -fsanitize=${QKV_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_compile_options(${qkv_sanitize_flags})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-maybe-uninitialized)  # false positives in instrumented code, says GCC's manual
  endif()
  add_link_options(${qkv_sanitize_flags})
endif()
if(QKV_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "QKV_FUZZ needs clang: use 'cmake --preset fuzz' or 'make fuzz'")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

find_program(QKV_MOLD mold)
if(QKV_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

find_program(QKV_CCACHE ccache)
if(QKV_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${QKV_CCACHE})
endif()
